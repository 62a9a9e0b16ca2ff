"""The two ways to put load on a server.

Closed: so many callers, each of whom asks again as soon as it has been answered; a slow server is
asked less often. Open: requests come when they come, whatever became of those before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from chattts_triton.load.plan import Request
from chattts_triton.load.take import Speaker, Take


@dataclass(frozen=True)
class Spoken:
    """A request and what came of it.

    Attributes:
        planned_s: When the request was due; all its times count from here.
        began_s: When it was made.
    """

    request: Request
    planned_s: float
    began_s: float
    take: Take

    @property
    def latency_s(self) -> float:
        """From the time at which it was due to its last sample."""
        return self.take.ended_s - self.planned_s

    @property
    def ttfa_s(self) -> float:
        """To its first sample."""
        return self.take.first_audio_s - self.planned_s


async def closed_loop(
    speaker: Speaker, requests: Sequence[Request], concurrency: int
) -> list[Spoken]:
    """Speak all requests, `concurrency` at a time, each due as soon as a caller is free."""
    waiting = iter(requests)
    spoken: list[Spoken] = []
    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(requests))):
            callers.create_task(_call_again(speaker, waiting, spoken))
    return _in_order(spoken)


async def open_loop(
    speaker: Speaker,
    requests: Sequence[Request],
    arrivals_s: Sequence[float],
    concurrency: int | None = None,
) -> list[Spoken]:
    """Speak each request at its time, behind the beginning of the loop.

    Args:
        speaker: Who speaks.
        requests: In the order of their arrival.
        arrivals_s: Rising; one for each request.
        concurrency: Most requests at a time; one that must wait for another is late, since it
            counts from its arrival all the same.
    """
    loop = asyncio.get_running_loop()
    first_s = loop.time()
    room = nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
    spoken: list[Spoken] = []

    async def call(request: Request, planned_s: float) -> None:
        async with room:
            began_s = loop.time()
            take = await speaker.speak(request.text, request.seed)
        spoken.append(Spoken(request, planned_s, began_s, take))

    async with asyncio.TaskGroup() as calls:
        for request, arrival_s in zip(requests, arrivals_s, strict=True):
            await asyncio.sleep(first_s + arrival_s - loop.time())
            calls.create_task(call(request, first_s + arrival_s))
    return _in_order(spoken)


async def _call_again(speaker: Speaker, waiting: Iterator[Request], spoken: list[Spoken]) -> None:
    loop = asyncio.get_running_loop()
    for request in waiting:
        began_s = loop.time()
        take = await speaker.speak(request.text, request.seed)
        spoken.append(Spoken(request, began_s, began_s, take))


def _in_order(spoken: list[Spoken]) -> list[Spoken]:
    return sorted(spoken, key=lambda one: one.request.index)
