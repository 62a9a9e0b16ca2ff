"""The audio of several segments as one, with pauses between; its two ends can be trimmed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import SAMPLE_RATE_HZ

Audio = npt.NDArray[np.float32]

SILENCE_DBFS = -60.0
KEPT_SILENCE_MS = 50
_SILENCE = 10 ** (SILENCE_DBFS / 20)
KEPT_SAMPLES = SAMPLE_RATE_HZ * KEPT_SILENCE_MS // 1000


def loud_samples(audio: Audio) -> npt.NDArray[np.intp]:
    """Indices of the samples that are no silence: -60 dBFS or more."""
    (indices,) = np.nonzero(np.abs(audio) >= _SILENCE)
    return indices


def trim_silence(audio: Audio) -> Audio:
    """Cut leading and trailing silence below -60 dBFS down to 50 ms; what lies between stays.

    Args:
        audio: (S,) float32.

    Returns:
        A view of `audio`; all of it, cut to 50 ms, where there is nothing but silence.
    """
    loud = loud_samples(audio)
    if not len(loud):
        return audio[:KEPT_SAMPLES]
    return audio[max(loud[0] - KEPT_SAMPLES, 0) : loud[-1] + 1 + KEPT_SAMPLES]


def join_segments(segments: list[Audio], pauses: list[int]) -> Audio:
    """Put segments one behind the other, each followed by as many zeros as `pauses` says."""
    parts = [
        part
        for audio, pause in zip(segments, pauses, strict=True)
        for part in (audio, np.zeros(pause, dtype=np.float32))
    ]
    return np.concatenate(parts)
