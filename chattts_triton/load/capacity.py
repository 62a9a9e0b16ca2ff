"""How many streams a server carries at a time before a listener would hear silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from chattts_triton.load.plan import MAX_CONCURRENCY, LoadPlan
from chattts_triton.load.run import run_load
from chattts_triton.load.summary import Summary, summarize
from chattts_triton.load.take import Speaker

STREAMS_PER_CALLER = 2  # so that callers no longer begin all at once


@dataclass(frozen=True)
class Level:
    """What came of so many streams at a time."""

    concurrency: int
    summary: Summary

    @property
    def holds(self) -> bool:
        """Whether every stream was there to its end and none ran dry."""
        underruns = self.summary.underruns
        is_complete = self.summary.num_answered == self.summary.num_requests
        return is_complete and underruns is not None and underruns.count == 0


async def find_capacity(
    speaker: Speaker, plan: LoadPlan, on_level: Callable[[Level], None]
) -> tuple[int, list[Level]]:
    """The highest concurrency that holds, 0 where none does, and each one that was tried.

    Args:
        speaker: Streams.
        plan: Its concurrency is tried first; its requests are those of a level, or
            `STREAMS_PER_CALLER` for each caller where that is more.
        on_level: Is told of each level when it is over.

    Raises:
        ChatTTSError: A request of a warm-up failed.
    """
    levels: list[Level] = []

    async def holds(concurrency: int) -> bool:
        num_requests = max(plan.num_requests, STREAMS_PER_CALLER * concurrency)
        run = await run_load(
            speaker, replace(plan, concurrency=concurrency, num_requests=num_requests)
        )
        levels.append(Level(concurrency, summarize(run, is_stream=True)))
        on_level(levels[-1])
        return levels[-1].holds

    return await highest(holds, plan.concurrency or 1, MAX_CONCURRENCY), levels


async def highest(holds: Callable[[int], Awaitable[bool]], start: int, limit: int) -> int:
    """The highest number up to `limit` that holds, where none above one that does not will.

    Doubles from `start` to the first that does not hold, then halves the way back.
    """
    good, bad = 0, min(start, limit)
    while await holds(bad):
        if bad == limit:
            return limit
        good, bad = bad, min(2 * bad, limit)
    while bad - good > 1:
        middle = (good + bad) // 2
        if await holds(middle):
            good = middle
        else:
            bad = middle
    return good
