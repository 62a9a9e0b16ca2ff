"""Decodes hidden states to audio by the waveform graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import num_audio_samples
from chattts_triton.errors import GenerationError
from chattts_triton.ort import Device, make_session

FILE_NAME = "waveform.onnx"


class WaveformDecoder:
    """One waveform graph, in float32 on every device; `decode` may be called from any thread."""

    def __init__(
        self, directory: Path, *, threads: int, device: Device = Device.CPU, device_id: int = 0
    ) -> None:
        # The engine's threads spin for their next step; these would only take cores from them.
        self._session = make_session(
            directory / FILE_NAME,
            threads=threads,
            device=device,
            device_id=device_id,
            spinning=False,
        )

    def decode(self, hiddens: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Decode one sequence, alone, so that no neighbour's padding can reach its samples.

        Args:
            hiddens: (T, hidden) float32, T at least 1.

        Returns:
            (512 * T - 256,) float32 in [-1, 1] at 24,000 Hz.

        Raises:
            GenerationError: There are no steps to decode, or the audio is not finite.
        """
        if len(hiddens) == 0:
            raise GenerationError("no code steps to decode")
        (audio,) = self._session.run(["audio"], {"hiddens": hiddens[None]})
        samples: npt.NDArray[np.float32] = audio[0]
        if not np.isfinite(samples).all():
            raise GenerationError(f"audio of {len(hiddens)} code steps is not finite")
        assert len(samples) == num_audio_samples(len(hiddens))
        return np.clip(samples, -1.0, 1.0)
