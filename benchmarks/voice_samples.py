"""What can be seen and heard of a voice: mel spectrograms beside the teacher's, and wav files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chattts_client import Audio
from chattts_triton.constants import HOP_SAMPLES, SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from training.corpus import log_mel

MAX_SAMPLES_BYTES = 1_000_000
_LEVELS = (-6.5, 4.0)  # of a log-mel spectrogram, from the noise floor to loud vowels
_NUM_COLOURS = 16  # few, which keeps the files small
_DOTS_PER_INCH = 72


def draw_mels(path: Path, title: str, audios: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """One picture of several spectrograms, one above the other on the same axis of time."""
    figure = Figure(figsize=(9, 1 + 1.8 * len(audios)), layout="tight")
    rows = figure.subplots(len(audios), sharex=True, sharey=True, squeeze=False)[:, 0]
    for row, (name, audio) in zip(rows, audios.items(), strict=True):
        _show(row, audio)
        row.set_ylabel(f"{name}\nmel bin")
    rows[0].set(title=title, xlim=(0, max(map(len, audios.values())) / SAMPLE_RATE_HZ))
    rows[-1].set_xlabel("s")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without the version of the library, so that the same spectrograms give the same file.
    figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})


def _show(axes: Axes, audio: npt.NDArray[np.float32]) -> None:
    missing = -len(audio) % SAMPLES_PER_CODE
    mel = log_mel(np.pad(audio, (0, missing))).T
    axes.imshow(
        mel,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        cmap=colormaps["magma"].resampled(_NUM_COLOURS),
        vmin=_LEVELS[0],
        vmax=_LEVELS[1],
        extent=(0, mel.shape[1] * HOP_SAMPLES / SAMPLE_RATE_HZ, 0, mel.shape[0]),
    )


def write_samples(directory: Path, audios: Mapping[str, Audio]) -> None:
    """Write NAME.wav of each.

    Raises:
        ValueError: Together they are larger than what may be kept in git; none is written.
    """
    files = {name: audio.wav_bytes() for name, audio in audios.items()}
    num_bytes = sum(map(len, files.values()))
    if num_bytes > MAX_SAMPLES_BYTES:
        raise ValueError(f"samples: got {num_bytes} bytes, wanted at most {MAX_SAMPLES_BYTES}")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.wav").write_bytes(content)
