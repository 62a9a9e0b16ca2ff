"""Encodes an audio sample to codes by the graph of the DVAE encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import HOP_SAMPLES, N_FFT
from chattts_triton.ort import make_session
from chattts_triton.voices.prompt_codes import PromptCodes

FILE_NAME = "dvae_encoder.onnx"


class SampleEncoder:
    """One encoder graph; `encode` may be called from any thread.

    Raises:
        ModelLoadError: The graph is missing or damaged.
    """

    def __init__(self, directory: Path, *, threads: int) -> None:
        self._session = make_session(
            directory / FILE_NAME, threads=threads, spinning=False, prepacking=False
        )

    def encode(self, audio: npt.NDArray[np.float32]) -> PromptCodes:
        """(S,) samples at 24,000 Hz, at least one window of them, to (P, num_vq) codes."""
        (codes,) = self._session.run(["codes"], {"magnitudes": magnitudes(audio)[None]})
        rows: PromptCodes = codes[0]
        return rows


def magnitudes(audio: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Magnitudes of the short-time Fourier transform, (S,) to (513, F), F = S // 256 + 1.

    Args:
        audio: (S,) float32, more than half a window.

    Source:
        torch.stft with a periodic Hann window, centred, its ends mirrored; here in float64, so that
        quiet bins beside loud ones are not rounding noise.
    """
    padded = np.pad(audio.astype(np.float64), N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP_SAMPLES]
    window = np.hanning(N_FFT + 1)[:-1]  # periodic
    spectrum = np.fft.rfft(frames * window, axis=-1)  # (F, 513)
    return np.abs(spectrum).T.astype(np.float32)
