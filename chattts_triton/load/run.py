"""One measurement: the warm-up, then the load, then what is left to be counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from chattts_triton.errors import ChatTTSError
from chattts_triton.load.loops import Spoken, closed_loop, open_loop
from chattts_triton.load.plan import LoadPlan, Request, arrivals_s
from chattts_triton.load.take import Speaker


@dataclass(frozen=True)
class LoadRun:
    """All requests of a plan as they were answered, and the time from the first to the last."""

    plan: LoadPlan
    spoken: tuple[Spoken, ...]
    began_s: float
    ended_s: float

    @property
    def elapsed_s(self) -> float:
        """How long the load lasted."""
        return self.ended_s - self.began_s


async def run_load(speaker: Speaker, plan: LoadPlan) -> LoadRun:
    """Warm the server up, then measure it.

    Raises:
        ChatTTSError: A request of the warm-up failed, so that a measurement would be worth nothing.
    """
    for spoken in await _drive(speaker, plan, plan.dropped()):
        failure = spoken.take.failure
        if failure is not None and not failure.is_refusal:
            raise ChatTTSError(f"warm-up: {failure.kind}: {failure.message}")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    measured = await _drive(speaker, plan, plan.measured())
    return LoadRun(plan, tuple(measured), began_s, loop.time())


async def _drive(speaker: Speaker, plan: LoadPlan, requests: list[Request]) -> list[Spoken]:
    if plan.rate_per_s is not None:
        times_s = arrivals_s(plan.rate_per_s, len(requests), plan.seed)
        return await open_loop(speaker, requests, times_s, plan.concurrency)
    assert plan.concurrency is not None
    return await closed_loop(speaker, requests, plan.concurrency)
