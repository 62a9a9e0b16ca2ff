"""What one text became: the samples, how they came about, and how they become a WAV file."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 24_000
PCM16_PEAK = 32_767

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, eq=False)
class Audio:
    """The audio of one text.

    Attributes:
        samples: (S,) float32 in [-1, 1].
        sample_rate: In Hz.
        seed: What the speaker and the codes were drawn from; send it to get this audio again.
        finish_reason: "stop" where the model ended by itself, "length" where the limit of steps
            cut the audio off.
        pcm16: (S,) int16, the server's own dithered conversion, where the server gave one.
        refined_text: What was spoken in place of the text, where a refinement was asked for.
        warnings: Codes of what the caller should know, such as "refine_refused" or
            "unknown_words".
    """

    samples: NDArray[np.float32] = field(repr=False)
    sample_rate: int
    seed: int
    finish_reason: FinishReason
    pcm16: NDArray[np.int16] | None = field(default=None, repr=False)
    refined_text: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """How long the audio plays."""
        return len(self.samples) / self.sample_rate

    def wav_bytes(self) -> bytes:
        """A whole WAV file: mono, 16 bit, from `pcm16` where it came.

        Raises:
            ValueError: There is no `pcm16`, and a sample is not a finite number.
        """
        pcm16 = to_pcm16(self.samples) if self.pcm16 is None else self.pcm16
        file = io.BytesIO()
        soundfile.write(file, pcm16, self.sample_rate, format="WAV", subtype="PCM_16")
        return file.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the WAV file of `wav_bytes`.

        Raises:
            OSError: The file cannot be written.
            ValueError: As for `wav_bytes`.
        """
        Path(path).write_bytes(self.wav_bytes())


def to_pcm16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """(S,) int16 of (S,) float32; values beyond [-1, 1] are clipped, whatever the peak is.

    Raises:
        ValueError: A sample is not a finite number.
    """
    if not np.isfinite(samples).all():
        raise ValueError("samples: got NaN or infinity, wanted finite numbers")
    pcm16: NDArray[np.int16] = np.rint(np.clip(samples, -1.0, 1.0) * PCM16_PEAK).astype(np.int16)
    return pcm16
