"""What a listener would have heard who starts to play at the first piece of audio.

The player takes one sample every 1/24,000 s. A piece whose first sample is due before it has
arrived is an under-run: the player gives silence, by whole samples, until the piece is there, and
then goes on. So one late piece delays all that follow, and they are late only by themselves.

    arrived   | 0              | 1                      | 2     | 3
    played      000000000000000  1111111111111 .........  2222222222222 3333
                                               an under-run
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.load.take import Arrival

# Far less than a sample, far more than what rounding does to a clock that has run for years.
_ROUNDING_SAMPLES = 1e-3


@dataclass(frozen=True)
class Playout:
    """The silences within one stream, in samples, in their order; none where all came in time."""

    underruns_samples: tuple[int, ...]

    @property
    def silence_s(self) -> float:
        """All of them together."""
        return sum(self.underruns_samples) / SAMPLE_RATE_HZ

    @property
    def longest_s(self) -> float:
        """The longest of them; 0 without any."""
        return max(self.underruns_samples, default=0) / SAMPLE_RATE_HZ


def play_out(arrivals: Sequence[Arrival]) -> Playout:
    """Play a stream by the times at which its pieces came; one sample of silence counts."""
    pieces = [arrival for arrival in arrivals if arrival.num_samples]
    underruns = []
    due_samples = 0  # behind the first piece's arrival
    for piece in pieces:
        came_samples = (piece.at_s - pieces[0].at_s) * SAMPLE_RATE_HZ
        silent = math.ceil(came_samples - due_samples - _ROUNDING_SAMPLES)
        if silent > 0:
            underruns.append(silent)
            due_samples += silent
        due_samples += piece.num_samples
    return Playout(tuple(underruns))


def gaps_s(arrivals: Sequence[Arrival]) -> list[float]:
    """Seconds between each piece and the one before it."""
    return [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
