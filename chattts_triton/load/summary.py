"""A run in figures: how soon, how fast, how often silent, how often not at all.

Times, rates and under-runs are those of requests that were answered to their end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chattts_triton.load.loops import Spoken
from chattts_triton.load.playout import Playout, gaps_s, play_out
from chattts_triton.load.run import LoadRun


@dataclass(frozen=True)
class Spread:
    """How values lie; percentiles between two values are interpolated."""

    p50: float
    p95: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of some values; None of none."""
        if not values:
            return None
        p50, p95, p99, largest = np.percentile(values, [50, 95, 99, 100])
        return cls(float(p50), float(p95), float(p99), float(largest))


@dataclass(frozen=True)
class Underruns:
    """What listeners would have heard of silence.

    Attributes:
        count: Silences in all streams.
        streams: Streams with at least one.
        silence_s: All of them together.
        longest_s: The longest one.
    """

    count: int
    streams: int
    silence_s: float
    longest_s: float

    @classmethod
    def of(cls, playouts: Sequence[Playout]) -> Underruns:
        """Those of all streams together."""
        return cls(
            count=sum(len(one.underruns_samples) for one in playouts),
            streams=sum(bool(one.underruns_samples) for one in playouts),
            silence_s=sum(one.silence_s for one in playouts),
            longest_s=max((one.longest_s for one in playouts), default=0.0),
        )


@dataclass(frozen=True)
class Summary:
    """A run in figures.

    Attributes:
        num_requests: Measured, whatever became of them.
        num_answered: Of those, answered to their end.
        num_cut: Of the answered, ended by a limit of steps.
        num_refused: The server had no room for them; no failures.
        failures: How many of each kind.
        messages: The first message of each kind of failure.
        modes: How many streams of each mode.
        elapsed_s: From the first request to the last answer.
        audio_s: Of all answers.
        latency_s: From the time at which a request was due to its last sample.
        rtf: That over the length of its audio.
        ttfa_s: To its first sample; None where nothing was streamed.
        gap_s: Between two chunks of one stream.
        underruns: None where nothing was streamed.
    """

    num_requests: int
    num_answered: int
    num_cut: int
    num_refused: int
    failures: dict[str, int]
    messages: dict[str, str]
    modes: dict[str, int]
    elapsed_s: float
    audio_s: float
    audio_seconds_per_second: float
    latency_s: Spread | None
    rtf: Spread | None
    ttfa_s: Spread | None
    gap_s: Spread | None
    underruns: Underruns | None

    @property
    def num_failed(self) -> int:
        """Requests that were neither answered nor refused."""
        return sum(self.failures.values())


def summarize(run: LoadRun, *, is_stream: bool) -> Summary:
    """The figures of a run; those about chunks only where it was streamed."""
    answered = [one for one in run.spoken if one.take.is_whole]
    failures = [one.take.failure for one in run.spoken if one.take.failure is not None]
    failed = [failure for failure in failures if not failure.is_refusal]
    audio_s = sum(one.take.audio_s for one in answered)
    return Summary(
        num_requests=len(run.spoken),
        num_answered=len(answered),
        num_cut=sum(one.take.is_cut for one in answered),
        num_refused=len(failures) - len(failed),
        failures=dict(sorted(Counter(failure.kind for failure in failed).items())),
        messages={failure.kind: failure.message for failure in reversed(failed)},
        modes=dict(sorted(Counter(one.take.mode for one in answered if one.take.mode).items())),
        elapsed_s=run.elapsed_s,
        audio_s=audio_s,
        audio_seconds_per_second=audio_s / run.elapsed_s if run.elapsed_s > 0 else 0.0,
        latency_s=Spread.of([one.latency_s for one in answered]),
        rtf=Spread.of([rtf_of(one) for one in answered if one.take.num_samples]),
        ttfa_s=Spread.of([one.ttfa_s for one in answered]) if is_stream else None,
        gap_s=Spread.of(_all_gaps_s(answered)) if is_stream else None,
        underruns=_underruns(answered) if is_stream else None,
    )


def rtf_of(spoken: Spoken) -> float:
    """Seconds a caller waits for a second of audio."""
    return spoken.latency_s / spoken.take.audio_s


def _all_gaps_s(answered: Sequence[Spoken]) -> list[float]:
    return [gap_s for one in answered for gap_s in gaps_s(one.take.arrivals)]


def _underruns(answered: Sequence[Spoken]) -> Underruns:
    return Underruns.of([play_out(one.take.arrivals) for one in answered])
