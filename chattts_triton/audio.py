"""Float audio to 16-bit PCM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import GenerationError

_FULL_SCALE = 32767


class Pcm16Converter:
    """Converts audio that comes in pieces to 16 bits at a fixed scale.

    The scale never depends on the peak, so neither does the loudness. With a seed, triangular
    dither of one step to either side is added before rounding: the error becomes a faint even hiss
    instead of distortion that follows the signal. Samples that are exactly zero stay zero, so that
    padding and digital silence remain silent.

    However the audio is cut into pieces, the joined pieces are what it is converted to at once.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Start an audio.

        Args:
            seed: Seed of the dither, 0 or more; None rounds without dither.
        """
        self._generators: tuple[np.random.Generator, np.random.Generator] | None = None
        if seed is not None:
            # Each sample takes one number of either, so the next piece can go on where this ended.
            bits = np.random.PCG64(seed)
            self._generators = np.random.Generator(bits), np.random.Generator(bits.jumped())

    def convert(self, audio: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """Convert the next piece.

        Args:
            audio: (S,) float32; values beyond 1 are clipped.

        Returns:
            (S,) int16, 1.0 being 32767 and -1.0 being -32767.

        Raises:
            GenerationError: The audio holds NaN.
        """
        if np.isnan(audio).any():
            raise GenerationError("audio holds NaN")
        scaled = np.clip(audio, -1.0, 1.0) * np.float32(_FULL_SCALE)
        if self._generators is not None:
            up, down = self._generators
            dither = up.random(len(audio), dtype=np.float32)
            dither -= down.random(len(audio), dtype=np.float32)
            # Numbers were drawn for silence too, so what follows does not depend on it.
            dither[audio == 0] = 0.0
            scaled += dither
            np.clip(scaled, -_FULL_SCALE, _FULL_SCALE, out=scaled)
        pcm16: npt.NDArray[np.int16] = np.rint(scaled).astype(np.int16)
        return pcm16


def to_pcm16(audio: npt.NDArray[np.float32], seed: int | None = None) -> npt.NDArray[np.int16]:
    """Convert a whole audio (S,) to 16 bits; see Pcm16Converter."""
    return Pcm16Converter(seed).convert(audio)
