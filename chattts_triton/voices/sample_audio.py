"""Reads an audio sample of a voice: any format of libsndfile, to 24 kHz in one channel."""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.prompt_codes import MAX_SAMPLE_S, MIN_SAMPLE_S

if TYPE_CHECKING:
    from soundfile import SoundFile

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 8
SILENCE_DBFS = -60.0

Audio = npt.NDArray[np.float32]


def read_sample(path: Path, field: str = "--from-wav") -> Audio:
    """The samples of a file, its channels averaged: (S,) float32 at 24,000 Hz.

    Raises:
        InvalidRequestError: It is no audio, too short, too long, silent or not finite.
        ModelLoadError: The packages that read and resample audio are not installed.
    """
    try:
        import scipy.signal  # type: ignore[import-untyped]
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the shared library is missing
        raise ModelLoadError(
            f"audio cannot be read ({error}); install chattts-triton[voices]"
        ) from error
    try:
        with path.open("rb") as stream, soundfile.SoundFile(stream) as file:
            _check_header(file, path, field)
            channels: Audio = file.read(dtype="float32", always_2d=True)
            rate_hz = file.samplerate
    except OSError as error:
        raise InvalidRequestError(f"{field}: {path} cannot be read: {error}") from error
    # TypeError: by its name the file is raw samples, whose rate it would want to be told.
    except (soundfile.SoundFileError, TypeError) as error:
        raise InvalidRequestError(f"{field}: {path} is no audio file: {error}") from error
    _check_duration(len(channels) / rate_hz, path, field)  # a file cut short has fewer
    audio: Audio = channels.mean(axis=1)
    _check_level(audio, path, field)
    if rate_hz == SAMPLE_RATE_HZ:
        return audio
    divisor = gcd(rate_hz, SAMPLE_RATE_HZ)
    resampled = scipy.signal.resample_poly(audio, SAMPLE_RATE_HZ // divisor, rate_hz // divisor)
    return np.asarray(resampled, dtype=np.float32)


def _check_header(file: SoundFile, path: Path, field: str) -> None:
    """Before anything is read, so that a huge file costs nothing."""
    if not MIN_RATE_HZ <= file.samplerate <= MAX_RATE_HZ:
        raise InvalidRequestError(
            f"{field}: {path} has {file.samplerate} Hz, wanted {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        )
    if file.channels > MAX_CHANNELS:
        raise InvalidRequestError(
            f"{field}: {path} has {file.channels} channels, wanted at most {MAX_CHANNELS}"
        )
    _check_duration(file.frames / file.samplerate, path, field)


def _check_duration(duration_s: float, path: Path, field: str) -> None:
    if not MIN_SAMPLE_S <= duration_s <= MAX_SAMPLE_S:
        raise InvalidRequestError(
            f"{field}: {path} has {duration_s:.2f} s, wanted {MIN_SAMPLE_S:.0f} to "
            f"{MAX_SAMPLE_S:.1f} s"
        )


def _check_level(audio: Audio, path: Path, field: str) -> None:
    if not np.isfinite(audio).all():
        raise InvalidRequestError(f"{field}: {path} holds samples that are not finite")
    if np.abs(audio).max() < 10 ** (SILENCE_DBFS / 20):
        raise InvalidRequestError(
            f"{field}: {path} is silent, wanted speech of more than {SILENCE_DBFS:.0f} dBFS"
        )
