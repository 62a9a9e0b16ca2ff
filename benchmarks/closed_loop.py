"""Callers who ask again as soon as they are answered, for a fixed time, whoever answers them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from chattts_triton.constants import SAMPLE_RATE_HZ, num_audio_samples

NUM_CANDIDATES = 16  # seeds that are tried at a time
MAX_ROUNDS = 20

Speak = Callable[[int], float]


class NotSpokenError(Exception):
    """The request was still waiting when the time was over; it does not count."""


@dataclass(frozen=True)
class Cell:
    """What so many callers got in their time.

    Attributes:
        concurrency: Callers.
        elapsed_s: From the first request to the last answer.
        audio_s: Of all answers.
        latencies_s: Of each answer, from its request, in the order of their coming.
        num_dropped: Requests that still waited in the end; where there are any, the latencies are
            those of the first in the queue, and the others would have waited longer.
    """

    concurrency: int
    elapsed_s: float
    audio_s: float
    latencies_s: tuple[float, ...]
    num_dropped: int = 0

    @property
    def audio_seconds_per_second(self) -> float:
        """Throughput."""
        return self.audio_s / self.elapsed_s

    def latency_s(self, percent: float) -> float:
        """A percentile of the latencies; between two of them it is interpolated."""
        return float(np.percentile(self.latencies_s, percent))


def run_cell(
    speak: Speak,
    seeds: Sequence[int],
    concurrency: int,
    seconds: float,
    drop_waiting: Callable[[], object],
) -> Cell:
    """Ask for `seconds`, then let finish what is being spoken and drop what still waits.

    The time of the cell ends with its last answer, so that a side which answers one after another
    and one which answers all at once are measured alike: by whole requests.

    Args:
        speak: Seconds of audio of a seed; from many threads at once.
        seeds: Are taken in turns.
        concurrency: Callers, each a thread.
        seconds: No request is begun after them, but for the first of each caller.
        drop_waiting: Has the requests that wait fail with NotSpokenError.
    """
    turns = itertools.cycle(seeds)
    lock = threading.Lock()
    answers: list[tuple[float, float, float]] = []
    began_s = time.perf_counter()
    deadline_s = began_s + seconds

    def call_again() -> bool:
        """Whether the last request of this caller was dropped."""
        asked_s = time.perf_counter()
        while True:
            with lock:
                seed = next(turns)
            try:
                audio_s = speak(seed)
            except NotSpokenError:
                return True
            answered_s = time.perf_counter()
            with lock:
                answers.append((answered_s, answered_s - asked_s, audio_s))
            if answered_s >= deadline_s:
                return False
            asked_s = answered_s

    with ThreadPoolExecutor(concurrency) as pool:
        callers = [pool.submit(call_again) for _ in range(concurrency)]
        # Ends early where a caller has failed.
        wait(callers, max(0.0, deadline_s - time.perf_counter()), FIRST_EXCEPTION)
        drop_waiting()
        num_dropped = sum(caller.result() for caller in callers)
    return Cell(
        concurrency,
        max(answered_s for answered_s, _, _ in answers) - began_s,
        sum(audio_s for _, _, audio_s in answers),
        tuple(latency_s for _, latency_s, _ in answers),
        num_dropped,
    )


def lasting_seeds(speak: Speak, num_codes: int, count: int) -> list[int]:
    """The first seeds whose audio is not over before `num_codes` steps, the cap of `speak`.

    Random weights draw the end code at random, and a request that ends early would be measured as
    a shorter one.

    Raises:
        LookupError: There are too few among the first 320.
    """
    full_s = num_audio_samples(num_codes) / SAMPLE_RATE_HZ
    found: list[int] = []
    with ThreadPoolExecutor(NUM_CANDIDATES) as pool:
        for candidates in itertools.islice(_blocks(), MAX_ROUNDS):
            durations_s = pool.map(speak, candidates)
            found += [
                seed
                for seed, duration_s in zip(candidates, durations_s, strict=True)
                if duration_s > full_s - 1 / SAMPLE_RATE_HZ
            ]
            if len(found) >= count:
                return found[:count]
    tried = NUM_CANDIDATES * MAX_ROUNDS
    raise LookupError(f"seeds: {len(found)} of {tried} reach {num_codes} steps, wanted {count}")


def _blocks() -> Iterator[range]:
    for start in itertools.count(0, NUM_CANDIDATES):
        yield range(start, start + NUM_CANDIDATES)
