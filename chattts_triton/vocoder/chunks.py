"""How long the chunks are that a segment's audio is cut into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import ModelLoadError

_LARGEST_GROWTH_PERCENT = 1000


@dataclass(frozen=True)
class ChunkSchedule:
    """Sizes of chunks in code steps: small at first, so that audio comes soon, then larger.

    Decoding a chunk costs its context as well, so larger chunks cost less for each sample. The
    sizes depend on nothing but the schedule: not on time, load or how fast steps come.

    Attributes:
        first_codes: Size of the first chunk.
        growth_percent: Size of each further one in percent of the one before, rounded up.
        max_codes: What the sizes grow to.

    Raises:
        ModelLoadError: A value is out of range; the message names it.
    """

    first_codes: int
    growth_percent: int
    max_codes: int

    def __post_init__(self) -> None:
        _check("first_codes", self.first_codes, 1, MAX_NEW_CODES)
        _check("growth_percent", self.growth_percent, 100, _LARGEST_GROWTH_PERCENT)
        _check("max_codes", self.max_codes, self.first_codes, MAX_NEW_CODES)

    def sizes(self) -> Iterator[int]:
        """The sizes of all chunks of a segment, without end."""
        size = self.first_codes
        while True:
            yield size
            # In whole numbers: a float's last bit must not decide where a chunk ends.
            size = min(-(-size * self.growth_percent // 100), self.max_codes)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ModelLoadError(f"{name}: got {value}, wanted {low} to {high}")
