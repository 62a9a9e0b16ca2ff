"""Which requests are made and when: the same plan makes the same ones, on any machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chattts_triton.errors import InvalidRequestError

MAX_REQUESTS = 1_000_000
MAX_CONCURRENCY = 1024
MAX_SEED = 2**63 - 1
NUM_WARMUP_AT_A_RATE = 4


@dataclass(frozen=True)
class Request:
    """One text with its seed; `index` counts from 0 behind the warm-up, which is below it."""

    index: int
    text: str
    seed: int


@dataclass(frozen=True)
class LoadPlan:
    """A load: closed by `concurrency` alone, open where there is a rate.

    Attributes:
        texts: Are taken in turns.
        num_requests: That are measured.
        concurrency: Requests at a time; with a rate, the most at a time, None being no limit.
        rate_per_s: Of Poisson arrivals; None has the next request follow an answer.
        num_warmup: Requests before them that are dropped; None takes the concurrency, or
            `NUM_WARMUP_AT_A_RATE` where there is a rate.
        seed: Of the first request, and of the arrivals; each further request has the next one.

    Raises:
        InvalidRequestError: A value is out of its range; the message names it.
    """

    texts: tuple[str, ...]
    num_requests: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    num_warmup: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidRequestError.of("texts", self.texts, "at least one")
        _check("requests", self.num_requests, 1, MAX_REQUESTS)
        if self.concurrency is not None or self.rate_per_s is None:
            _check("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.rate_per_s is not None and not 0 < self.rate_per_s < math.inf:
            raise InvalidRequestError.of("rate", self.rate_per_s, "above 0 a second")
        if self.num_warmup is not None:
            _check("warmup", self.num_warmup, 0, MAX_REQUESTS)
        _check("seed", self.seed, 0, MAX_SEED - self.num_requests - self.warmup)

    @property
    def warmup(self) -> int:
        """How many requests are dropped."""
        if self.num_warmup is not None:
            return self.num_warmup
        if self.rate_per_s is not None or self.concurrency is None:
            return NUM_WARMUP_AT_A_RATE
        return self.concurrency

    def measured(self) -> list[Request]:
        """The requests that count; how long the warm-up is changes none of them."""
        return self._requests(0, self.num_requests)

    def dropped(self) -> list[Request]:
        """Those before them, with the seeds behind theirs, so that none is asked twice."""
        return self._requests(self.num_requests, self.warmup)

    def _requests(self, first: int, count: int) -> list[Request]:
        return [
            Request(index, self.texts[index % len(self.texts)], self.seed + index)
            for index in range(first, first + count)
        ]


def arrivals_s(rate_per_s: float, count: int, seed: int) -> list[float]:
    """When requests of a Poisson process come, in seconds from its beginning."""
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return [float(at_s) for at_s in np.cumsum(gaps)]


def _check(field: str, value: int | None, lowest: int, highest: int) -> None:
    if value is None or not lowest <= value <= highest:
        raise InvalidRequestError.of(field, value, f"{lowest} to {highest}")
