"""Speaker vectors of the demonstration voice: every vector is one of the teacher's voices.

One dimension carries the voice, by its sign; the others are a little noise. So whatever VOICE a
client names or draws is a voice that was learned, and opposite vectors are different voices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.teacher import VOICES

_SIGNS = {"slt": 1.0, "rms": -1.0}
_NOISE = 0.04
assert set(_SIGNS) == set(VOICES)


def statistics(hidden_size: int) -> npt.NDArray[np.float16]:
    """Deviation and mean that a random voice is drawn from: (2, hidden)."""
    values = np.zeros((2, hidden_size), dtype=np.float16)
    values[0] = _NOISE
    values[0, 0] = 1.0
    return values


def speaker_vector(voice: str, hidden_size: int) -> npt.NDArray[np.float16]:
    """The named voice itself: (hidden,)."""
    vector = np.zeros(hidden_size, dtype=np.float16)
    vector[0] = _SIGNS[voice]
    return vector


def drawn_vector(voice: str, hidden_size: int, generator: torch.Generator) -> Tensor:
    """A random vector of this voice at length 1, as clients draw them, or now and then its own."""
    vector = torch.randn(hidden_size, generator=generator) * _NOISE
    first = torch.randn(1, generator=generator).item()
    vector[0] = _SIGNS[voice] * abs(first)
    if torch.rand(1, generator=generator).item() < 0.25:
        vector[0] = _SIGNS[voice]
        vector[1:] = 0.0
    return vector / vector.norm()
