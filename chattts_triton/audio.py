"""Float audio to 16-bit PCM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import GenerationError

_FULL_SCALE = 32767


def to_pcm16(audio: npt.NDArray[np.float32], seed: int | None = None) -> npt.NDArray[np.int16]:
    """Convert to 16 bits at a fixed scale, so that loudness never depends on the peak.

    With a seed, triangular dither of one step to either side is added before rounding: the error
    becomes a faint even hiss instead of distortion that follows the signal. Samples that are
    exactly zero stay zero, so that padding and digital silence remain silent.

    Args:
        audio: (S,) float32; values beyond 1 are clipped.
        seed: Seed of the dither, 0 or more; None rounds without dither.

    Returns:
        (S,) int16, 1.0 being 32767 and -1.0 being -32767.

    Raises:
        GenerationError: The audio holds NaN.
    """
    if np.isnan(audio).any():
        raise GenerationError("audio holds NaN")
    scaled = np.clip(audio, -1.0, 1.0) * np.float32(_FULL_SCALE)
    if seed is not None:
        random = np.random.Generator(np.random.PCG64(seed))
        dither = random.random(audio.shape, dtype=np.float32)
        dither -= random.random(audio.shape, dtype=np.float32)
        dither[audio == 0] = 0.0
        scaled += dither
        np.clip(scaled, -_FULL_SCALE, _FULL_SCALE, out=scaled)
    pcm16: npt.NDArray[np.int16] = np.rint(scaled).astype(np.int16)
    return pcm16
