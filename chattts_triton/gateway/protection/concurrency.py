"""How many requests speak at the same time, in all and of one caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from chattts_triton.gateway.errors import RETRY_AFTER_S, ApiError

_RETRY = {"Retry-After": str(RETRY_AFTER_S)}


class Concurrency:
    """Counts requests that run; called in the event loop.

    Args:
        max_in_all: Requests of all callers; None sets no limit.
    """

    def __init__(self, max_in_all: int | None) -> None:
        self._max_in_all = max_in_all
        self._running: Counter[str] = Counter()
        self._num_running = 0

    def enter(self, caller: str, max_of_caller: int | None) -> Callable[[], None]:
        """Count one more request.

        Returns:
            What is to be called once when it is over.

        Raises:
            ApiError: There are as many as there may be.
        """
        if max_of_caller is not None and self._running[caller] >= max_of_caller:
            raise ApiError(
                429,
                "too_many_concurrent_requests",
                f"got one more request while {max_of_caller} run, wanted at most that many",
                _RETRY,
            )
        if self._max_in_all is not None and self._num_running >= self._max_in_all:
            raise ApiError(
                503,
                "gateway_full",
                f"the gateway runs {self._max_in_all} requests, as many as it may",
                _RETRY,
            )
        self._running[caller] += 1
        self._num_running += 1
        return lambda: self._leave(caller)

    def _leave(self, caller: str) -> None:
        self._num_running -= 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]  # or every address that ever called would be remembered
