"""How many requests and characters in a time: a sliding window for each caller.

Gateways that share a Redis share the windows. While it does not answer each gateway counts for
itself, so that callers are still served and still limited.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import limits
import redis
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.quotas import Quota, rate

LOGGER = logging.getLogger(__name__)

REDIS_TIMEOUT_S = 0.5
REDIS_RETRY_S = 1.0
_PREFIX = "chattts_gateway"
_SCHEMES = ("redis://", "rediss://")
_FAILURES = (redis.RedisError, OSError, TimeoutError)

T = TypeVar("T")


@dataclass(frozen=True)
class Charge:
    """What one request takes of one limit."""

    kind: str  # "requests" or "characters"
    item: limits.RateLimitItem
    caller: str
    cost: int


@dataclass(frozen=True)
class Window:
    """How far a limit is used up: the calls of the window before count less and less.

    Attributes:
        amount: The limit.
        length_s: Of a window.
        previous: Taken in the window before.
        previous_ttl_s: Until that one counts no more.
        current: Taken in this window.
        current_ttl_s: Until this one counts no more, a whole window after its end.
    """

    amount: int
    length_s: int
    previous: int
    previous_ttl_s: float
    current: int
    current_ttl_s: float

    @property
    def remaining(self) -> int:
        """What may be taken now."""
        used = math.floor(self.previous * self.previous_ttl_s / self.length_s) + self.current
        return max(0, self.amount - used)

    @property
    def reset_s(self) -> float:
        """Until nothing counts any more."""
        return self.current_ttl_s if self.current else self.previous_ttl_s

    def wait_s(self, cost: int) -> float:
        """At which moment so much becomes free, if nothing else is taken before."""
        if cost <= self.remaining:
            return 0.0
        room = self.amount - cost
        if self.current <= room:
            fading = (room + 1 - self.current) * self.length_s / self.previous
            return max(0.0, self.previous_ttl_s - fading)
        # This window has to end, and then to fade as the one before did.
        return max(0.0, self.current_ttl_s - (room + 1) * self.length_s / self.current)


class RateLimits:
    """The rate limits of one gateway; called in the event loop.

    Args:
        redis_url: Where windows are shared; None keeps them in this process.
        metrics: Of the protection.
        now: A clock, in seconds.

    Raises:
        InvalidRequestError: The URL is none of Redis; the message does not tell it.
    """

    def __init__(
        self,
        redis_url: str | None,
        metrics: ProtectionMetrics,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._now = now
        self._own = _Store(MemoryStorage())
        self._shared = None if redis_url is None else _Store(_redis_storage(redis_url))
        self._is_up = True
        self._retry_at_s = 0.0

    def charges(self, caller: str, quota: Quota, num_characters: int) -> list[Charge]:
        """What a request would take.

        Raises:
            ApiError: The text is longer than what may be spoken in the whole time.
        """
        charges = []
        if quota.requests is not None:
            charges.append(Charge("requests", rate("requests", quota.requests), caller, 1))
        if quota.characters is not None and num_characters:
            item = rate("characters", quota.characters)
            if num_characters > item.amount:
                raise ApiError(
                    400,
                    "text_too_long",
                    f"input: got {num_characters} characters, wanted at most {item.amount}, "
                    "which is the limit for characters",
                    param="input",
                )
            charges.append(Charge("characters", item, caller, num_characters))
        return charges

    async def check(self, charges: list[Charge]) -> dict[str, str]:
        """Look whether all may be taken; takes nothing.

        Returns:
            The headers of an answer to a request that takes them.

        Raises:
            ApiError: A limit is used up.
        """
        if not charges:
            return {}
        windows = await self._call(lambda store: store.windows(charges))
        pairs = list(zip(charges, windows, strict=True))
        broken = [pair for pair in pairs if pair[0].cost > pair[1].remaining]
        if broken:
            waits = [(window.wait_s(charge.cost), charge) for charge, window in broken]
            wait_s, charge = max(waits, key=lambda wait: wait[0])
            headers = _headers([(charge, window, 0) for charge, window in pairs])
            raise _refusal(charge, wait_s, headers)
        return _headers([(charge, window, charge.cost) for charge, window in pairs])

    async def take(self, charges: list[Charge]) -> None:
        """Take all.

        Raises:
            ApiError: Another request took the rest since the check.
        """
        if not charges:
            return
        refused = await self._call(lambda store: store.take(charges))
        if refused is not None:
            raise _refusal(refused, 0.0, {})

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        if self._shared is not None:
            await self._shared.aclose()

    async def _call(self, call: Callable[[_Store], Awaitable[T]]) -> T:
        if self._shared is not None and (self._is_up or self._now() >= self._retry_at_s):
            # Before the call: while it is down only one request in a while waits for it.
            self._retry_at_s = self._now() + REDIS_RETRY_S
            try:
                async with asyncio.timeout(REDIS_TIMEOUT_S):
                    result = await call(self._shared)
            except _FAILURES as error:
                self._went_down(error)
            else:
                self._came_up()
                return result
        return await call(self._own)

    def _went_down(self, error: BaseException) -> None:
        self._metrics.redis_failures.inc()
        self._metrics.redis_up.set(0)
        if self._is_up:
            # The error's own text could tell the URL, and with it a password.
            name = type(error).__name__
            LOGGER.error("Redis fails (%s): limits are counted by this gateway alone", name)
        self._is_up = False

    def _came_up(self) -> None:
        self._metrics.redis_up.set(1)
        if not self._is_up:
            LOGGER.info("Redis answers again: limits are shared")
        self._is_up = True


class _Store:
    """Windows in one place."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def windows(self, charges: list[Charge]) -> list[Window]:
        """How far each limit is used up."""
        return [await self._window(charge) for charge in charges]

    async def take(self, charges: list[Charge]) -> Charge | None:
        """Take all, in turn; the first that could not be taken."""
        for charge in charges:
            if not await self._limiter.hit(
                charge.item, charge.kind, charge.caller, cost=charge.cost
            ):
                return charge
        return None

    async def aclose(self) -> None:
        """Close what is open."""
        if isinstance(self._storage, RedisStorage):
            bridge: Any = self._storage.bridge
            await bridge.get_connection().aclose()

    async def _window(self, charge: Charge) -> Window:
        length_s = charge.item.get_expiry()
        key = charge.item.key_for(charge.kind, charge.caller)
        counts = await self._storage.get_sliding_window(key, length_s)
        return Window(charge.item.amount, length_s, *counts)


def _redis_storage(url: str) -> RedisStorage:
    wanted = "a URL such as redis://HOST:PORT/0 or rediss://:PASSWORD@HOST:PORT/0"
    if not url.startswith(_SCHEMES):
        raise InvalidRequestError(f"redis: wanted {wanted}")
    options: dict[str, Any] = {
        "socket_timeout": REDIS_TIMEOUT_S,
        "socket_connect_timeout": REDIS_TIMEOUT_S,
        # One more try, for a connection that an earlier Redis has left behind.
        "retry": Retry(NoBackoff(), 1),
    }
    try:
        return RedisStorage(f"async+{url}", implementation="redispy", key_prefix=_PREFIX, **options)
    except (ValueError, ConfigurationError):  # whose text tells the whole URL
        raise InvalidRequestError(f"redis: wanted {wanted}") from None


def _headers(standings: list[tuple[Charge, Window, int]]) -> dict[str, str]:
    """The limits as OpenAI's API tells them, characters in place of its tokens."""
    headers = {}
    for charge, window, taken in standings:
        kind = charge.kind.capitalize()
        headers[f"X-RateLimit-Limit-{kind}"] = str(window.amount)
        headers[f"X-RateLimit-Remaining-{kind}"] = str(max(0, window.remaining - taken))
        reset_s = window.reset_s
        if taken:
            reset_s = window.current_ttl_s or 2 * window.length_s
        headers[f"X-RateLimit-Reset-{kind}"] = f"{math.ceil(reset_s)}s"
    return headers


def _refusal(charge: Charge, wait_s: float, headers: Mapping[str, str]) -> ApiError:
    retry_after_s = math.floor(wait_s) + 1
    return ApiError(
        429,
        "rate_limit_exceeded",
        f"{charge.kind}: the limit is {charge.item}; try again in {retry_after_s} s",
        {"Retry-After": str(retry_after_s), **headers},
    )
