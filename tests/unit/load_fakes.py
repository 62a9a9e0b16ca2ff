"""An event loop whose clock jumps, and speakers who take as long as they are told to."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chattts_triton.load.take import Arrival, Failure, Take

T = TypeVar("T")
SECOND = 24_000  # samples


class _Selector(selectors.SelectSelector):
    """Waits for nothing: what would have been waited for has passed."""

    waited_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "every task waits for another"
        self.waited_s += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which only sleeping takes time, and no time at all."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_s


def run_jumping(task: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(task)


@dataclass
class ScriptedSpeaker:
    """Sends `num_samples` after each delay; remembers what it was asked, and by how many at once.

    Attributes:
        delays_s: Of the pieces of a take, as a function of how many takes are open.
        failures: What the next takes end with, in place of their last piece; None is success.
    """

    delays_s: Callable[[int], list[float]] = lambda num_open: [1.0]
    num_samples: int = SECOND
    finish_reason: str = "stop"
    failures: deque[Failure | None] = field(default_factory=deque)
    asked: list[tuple[str, int]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    async def speak(self, text: str, seed: int) -> Take:
        loop = asyncio.get_running_loop()
        self.asked.append((text, seed))
        failure = self.failures.popleft() if self.failures else None
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        arrivals = []
        for delay_s in self.delays_s(self.num_open):
            await asyncio.sleep(delay_s)
            arrivals.append(Arrival(loop.time(), self.num_samples))
        self.num_open -= 1
        if failure is not None:
            return Take(tuple(arrivals[:-1]), loop.time(), failure=failure)
        return Take(tuple(arrivals), loop.time(), self.finish_reason, "low_latency")
