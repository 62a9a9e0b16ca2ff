"""The judge of Mandarin: which of the teacher's recordings does a sound resemble most?

Mel spectrograms are compared by dynamic time warping. Syllables that sound alike are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from training.corpus import log_mel

Audio = npt.NDArray[np.float32]
Frames = npt.NDArray[np.float32]

_FLOOR = -8.0  # of the log-mel; what is quieter is silence
_CODE_SAMPLES = 512


def features(audio: Audio) -> Frames:
    """(S,) samples at 24 kHz to (F, 100), without the silence at both ends, at a mean of 0."""
    whole = audio[: len(audio) // _CODE_SAMPLES * _CODE_SAMPLES]
    mel = np.maximum(log_mel(whole), _FLOOR)
    loud = np.flatnonzero(mel.max(axis=1) > mel.max() - 6.0)
    spoken = mel[loud[0] : loud[-1] + 1] if len(loud) else mel
    return spoken - spoken.mean()


def distances(sound: Frames, templates: Sequence[Frames]) -> npt.NDArray[np.float32]:
    """Mean distance a frame along the best path to each of the templates: (N,)."""
    lengths = np.array([len(t) for t in templates])
    padded = np.zeros((len(templates), lengths.max(), sound.shape[1]), dtype=np.float32)
    for row, template in zip(padded, templates, strict=True):
        row[: len(template)] = template
    best = np.full((len(templates), lengths.max() + 1), np.inf, dtype=np.float32)
    best[:, 0] = 0.0
    for frame in sound:
        cost = np.abs(padded - frame).mean(axis=2)
        row = np.full_like(best, np.inf)
        for j in range(1, best.shape[1]):
            before = np.minimum(np.minimum(best[:, j - 1], best[:, j]), row[:, j - 1])
            row[:, j] = cost[:, j - 1] + before
        best = row
    ends = best[np.arange(len(templates)), lengths]
    return ends / (len(sound) + lengths)


def nearest(sound: Audio, templates: Mapping[str, Frames]) -> str:
    """The name of the template that a sound resembles most."""
    names = list(templates)
    return names[int(distances(features(sound), [templates[n] for n in names]).argmin())]
