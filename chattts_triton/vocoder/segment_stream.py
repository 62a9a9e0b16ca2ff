"""The audio of one segment in chunks, while its hidden states are still being generated.

A chunk of the code steps [start, stop) is cut from the audio of a window of steps around it that is
decoded alone. Decoding is the caller's part.

    window   |<-- context -->|<---- chunk ---->|<-- look-ahead -->|
    next window     |<-- context -->|          |<---- chunk ---->|<-- look-ahead -->|
                                     cross-fade ^^^^
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import (
    CONTEXT_CODES,
    HOP_SAMPLES,
    SAMPLES_PER_CODE,
    num_audio_samples,
)
from chattts_triton.errors import GenerationError, ModelLoadError
from chattts_triton.vocoder.chunks import ChunkSchedule

Floats = npt.NDArray[np.float32]

_NO_SAMPLES: Floats = np.zeros(0, dtype=np.float32)


def longest_cross_fade(look_ahead_codes: int) -> int:
    """Samples that a window holds behind its chunk: what the next chunk can be faded in over."""
    return SAMPLES_PER_CODE * look_ahead_codes - HOP_SAMPLES


class SegmentStream:
    """Turns a segment's hidden states, as they come, into its audio, chunk by chunk.

    A chunk ends where the schedule says, once `look_ahead_codes` more steps exist. Where fewer than
    that are left of the segment, its window holds all of them, so it takes them and is the last. So
    the cuts depend on the schedule, the look-ahead and the number of steps alone: it makes no
    difference when steps come, nor when their number becomes known.

    With a context and a look-ahead of `CONTEXT_CODES` the joined chunks are the audio of the whole
    segment decoded at once. With less, a chunk ends before all that it depends on is known, and the
    next window tells the samples that follow in a slightly different way; so the first
    `cross_fade_samples` of a chunk go over from what the former window says about them to what its
    own says.

    It is used as `append` and `end` while not `is_ready`, then `window`, then `cut`, until
    `is_finished`. One thread at a time.
    """

    def __init__(
        self,
        schedule: ChunkSchedule,
        *,
        context_codes: int = CONTEXT_CODES,
        look_ahead_codes: int = CONTEXT_CODES,
        cross_fade_samples: int = 0,
    ) -> None:
        """Start a segment.

        Args:
            schedule: Sizes of the chunks.
            context_codes: Steps before a chunk that are decoded with it.
            look_ahead_codes: Steps behind a chunk that are decoded with it, 1 to `CONTEXT_CODES`.
            cross_fade_samples: 0 to `longest_cross_fade(look_ahead_codes)`; in a shorter chunk, the
                length of the chunk.

        Raises:
            ModelLoadError: A value is out of range; the message names it.
        """
        if not 1 <= look_ahead_codes <= CONTEXT_CODES:
            raise ModelLoadError(
                f"look_ahead_codes: got {look_ahead_codes}, wanted 1 to {CONTEXT_CODES}"
            )
        longest = longest_cross_fade(look_ahead_codes)
        if not 0 <= cross_fade_samples <= longest:
            raise ModelLoadError(
                f"cross_fade_samples: got {cross_fade_samples}, wanted 0 to {longest} "
                f"for a look-ahead of {look_ahead_codes} steps"
            )
        self._sizes = schedule.sizes()
        self._context_codes = context_codes
        self._look_ahead_codes = look_ahead_codes
        self._cross_fade_samples = cross_fade_samples
        self._start = 0  # of the next chunk, in steps
        self._scheduled_stop = next(self._sizes)
        self._total_codes: int | None = None
        self._hiddens: Floats | None = None  # (n, hidden), from step `_first_kept` on
        self._first_kept = 0
        self._overlap = _NO_SAMPLES  # the former window's version of the next chunk's first samples

    @property
    def num_codes(self) -> int:
        """Steps that came so far; the next to be appended has this index."""
        return self._first_kept + (0 if self._hiddens is None else len(self._hiddens))

    @property
    def wanted_codes(self) -> int:
        """Steps that must have come before the next chunk can be made."""
        wanted = self._scheduled_stop + self._look_ahead_codes
        return wanted if self._total_codes is None else min(wanted, self._total_codes)

    @property
    def is_ready(self) -> bool:
        """Whether the next chunk can be made of what has come."""
        return not self.is_finished and self.num_codes >= self.wanted_codes

    @property
    def is_finished(self) -> bool:
        """Whether the last chunk has been made."""
        return self._start == self._total_codes

    def append(self, hiddens: Floats) -> None:
        """Take further steps.

        Args:
            hiddens: (n, hidden) float32, those that follow what came before; n may be 0.

        Raises:
            GenerationError: These are more steps than the segment has.
        """
        num_codes = self.num_codes + len(hiddens)
        if self._total_codes is not None and num_codes > self._total_codes:
            raise GenerationError(f"{num_codes} code steps of a segment of {self._total_codes}")
        kept = [] if self._hiddens is None else [self._hiddens]
        self._hiddens = np.concatenate([*kept, hiddens])

    def end(self, total_codes: int) -> None:
        """Take the news that the segment has so many steps in all; some may still have to come.

        Raises:
            GenerationError: There are none, fewer than came, or another number was told before.
        """
        if total_codes < max(self.num_codes, 1) or self._total_codes not in (None, total_codes):
            known = self.num_codes if self._total_codes is None else self._total_codes
            raise GenerationError(f"a segment ended after {total_codes} code steps, not {known}")
        self._total_codes = total_codes

    def window(self) -> Floats:
        """The hidden states (n, hidden) that have to be decoded, alone, for the next chunk."""
        assert self.is_ready
        assert self._hiddens is not None
        _, behind = self._next_stop()
        return self._hiddens[self._first_needed() - self._first_kept : behind - self._first_kept]

    def cut(self, window_audio: Floats) -> Floats:
        """Make the next chunk, and let go of what no later window needs.

        Args:
            window_audio: (512 * n - 256,) float32, what `window` was decoded to.

        Returns:
            (S,) float32, a new array: 512 samples for each step of the chunk, and 256 fewer in the
            last chunk.

        Raises:
            GenerationError: The audio is of another length than the window's.
        """
        assert self.is_ready
        first, (stop, behind) = self._first_needed(), self._next_stop()
        if len(window_audio) != num_audio_samples(behind - first):
            raise GenerationError(
                f"{len(window_audio)} samples of audio for {behind - first} code steps"
            )
        begins = SAMPLES_PER_CODE * (self._start - first)
        # The last step of a segment is 256 samples shorter than the others.
        ends = len(window_audio) if stop == behind else SAMPLES_PER_CODE * (stop - first)
        chunk = window_audio[begins:ends].copy()
        _fade_over(self._overlap, chunk)
        self._overlap = window_audio[ends : ends + self._cross_fade_samples].copy()
        self._go_on_from(stop)
        return chunk

    def _first_needed(self) -> int:
        """The first step of the next window."""
        return max(self._start - self._context_codes, 0)

    def _next_stop(self) -> tuple[int, int]:
        """The steps that the next chunk and its window end before; the same in the last chunk."""
        behind = self._scheduled_stop + self._look_ahead_codes
        if self._total_codes is not None and behind > self._total_codes:
            return self._total_codes, self._total_codes
        return self._scheduled_stop, behind

    def _go_on_from(self, stop: int) -> None:
        self._start = stop
        self._scheduled_stop = stop + next(self._sizes)
        if self._hiddens is not None:
            dropped = self._first_needed() - self._first_kept
            # A copy, since a view would keep what was dropped.
            self._hiddens = self._hiddens[dropped:].copy()
            self._first_kept += dropped


def _fade_over(former: Floats, chunk: Floats) -> None:
    """Go over from `former` to `chunk` within the first samples of `chunk`, in place."""
    # Within the chunk, even if it is a short one: behind it, the next window's version follows.
    length = min(len(former), len(chunk))
    # Both tell the same sound, so their weights, rather than those' squares, add up to 1.
    phase = np.pi * (np.arange(length, dtype=np.float32) + 0.5) / max(length, 1)
    weight = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)
    chunk[:length] = former[:length] + weight * (chunk[:length] - former[:length])
