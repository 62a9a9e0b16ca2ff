"""`trim_silence` for audio that comes in pieces."""

from __future__ import annotations

import numpy as np

from chattts_triton.vocoder.joining import KEPT_SAMPLES, Audio, loud_samples

_NOTHING: Audio = np.zeros(0, dtype=np.float32)


class TrimStream:
    """Trims the two ends of an audio that is pushed piece by piece, as `trim_silence` would.

    However it is cut into pieces, what comes out is the same, sample for sample. Held back is only
    what may turn out to be cut: the last 50 ms before the first sound, and silence that has lasted
    for more than 50 ms since the last one.
    """

    def __init__(self) -> None:
        self._has_sound = False
        self._first = _NOTHING  # up to 50 ms from the start: all that is kept of mere silence
        self._recent = _NOTHING  # up to 50 ms before what is pushed next, while there is no sound
        self._held: list[Audio] = []  # silence behind the 50 ms that follow the last sound
        self._room_samples = 0  # of those 50 ms

    def push(self, audio: Audio) -> Audio:
        """Take the next piece (S,) float32, and give what is now sure to stay; often nothing."""
        loud = loud_samples(audio)
        if not self._has_sound:
            if not len(loud):
                self._first = np.concatenate([self._first, audio])[:KEPT_SAMPLES]
                self._recent = np.concatenate([self._recent, audio])[-KEPT_SAMPLES:]
                return _NOTHING
            before = np.concatenate([self._recent, audio[: loud[0]]])
            audio = np.concatenate([before[-KEPT_SAMPLES:], audio[loud[0] :]])
            loud = loud_samples(audio)
            self._has_sound = True
            self._first = self._recent = _NOTHING
        return self._trim_end(audio, loud[-1] + 1 if len(loud) else None)

    def end(self) -> Audio:
        """What is left once the last piece was pushed: 50 ms at most, where nothing was loud."""
        return self._first

    def _trim_end(self, audio: Audio, sound_ends: int | None) -> Audio:
        """Let through what comes no later than 50 ms after a sound; hold the rest back."""
        released: list[Audio] = []
        if sound_ends is not None:
            released, self._held = self._held, []
            self._room_samples = sound_ends + KEPT_SAMPLES
        released.append(audio[: self._room_samples])
        held = audio[self._room_samples :]
        self._room_samples -= len(released[-1])
        if len(held):
            self._held.append(held.copy())
        return np.concatenate(released)
