"""Speaker embeddings: drawn from the checkpoint's statistics, or read from a speaker string.

A speaker string is base16384 text of a raw LZMA2 stream of float16 values, little-endian.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.packed_string import (
    compress,
    decompress,
    from_base16384,
    max_characters,
    to_base16384,
)
from chattts_triton.voices.prompt_codes import is_sample_string

STATISTICS_FILE = "speaker_statistics.npy"
_WANTED = "a ChatTTS speaker string"


class SpeakerStatistics:
    """Mean and deviation of the voices that the checkpoint was trained on; any thread may draw.

    Args:
        path: `.npy` file, float16 (2, H): mean, then deviation.

    Raises:
        ModelLoadError: The file is missing, damaged or of another shape.
    """

    def __init__(self, path: Path) -> None:
        try:
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ModelLoadError(f"{path}: cannot be read: {error}") from error
        if not isinstance(values, np.ndarray):  # a .npz archive
            values.close()
            raise ModelLoadError(f"{path}: an archive, wanted one array")
        if values.dtype != np.float16 or values.ndim != 2 or values.shape[0] != 2:
            raise ModelLoadError(
                f"{path}: {values.dtype} {values.shape}, wanted float16 (2, hidden)"
            )
        if values.shape[1] == 0 or not np.isfinite(values).all():
            raise ModelLoadError(f"{path}: wanted finite values")
        self._mean, self._deviation = torch.from_numpy(values)

    @property
    def hidden_size(self) -> int:
        """Width of a speaker vector."""
        return len(self._mean)

    def draw(self, seed: int) -> npt.NDArray[np.float16]:
        """The voice of a seed, always the same: (H,) float16.

        Source:
            ChatTTS 0.2.5, `Speaker.sample_random` after `torch.manual_seed(seed)`, behaviour only.
            Unlike upstream: the process-wide random state is left alone.
        """
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(self.hidden_size, dtype=torch.float16, generator=generator)
        return np.asarray(noise.mul_(self._deviation).add_(self._mean))


def speaker_embedding(
    vector: npt.NDArray[np.float16], field: str = "VOICE"
) -> npt.NDArray[np.float32]:
    """The vector at length 1, as the model takes it: (H,) float16 -> (H,) float32.

    Raises:
        InvalidRequestError: It has no direction: all zero, or too large for float16.

    Source:
        ChatTTS 0.2.5, `Speaker.apply`, behaviour only: normalised in float16.
    """
    half = normalize(torch.from_numpy(vector), p=2.0, dim=0, eps=1e-12)
    unit = np.asarray(half).astype(np.float32)
    if not np.isfinite(unit).all() or not unit.any():
        raise InvalidRequestError(f"{field}: got a vector of no direction, wanted {_WANTED}")
    return unit


def decode_speaker(text: str, hidden_size: int, field: str = "VOICE") -> npt.NDArray[np.float16]:
    """Read a speaker string: (H,) float16.

    Raises:
        InvalidRequestError: It is no speaker string, cut short, or of another width.
    """
    num_bytes = 2 * hidden_size
    try:
        if len(text) > max_characters(num_bytes):
            raise ValueError(f"longer than {max_characters(num_bytes)} characters")
        raw = decompress(from_base16384(text), num_bytes)
    except ValueError:
        wanted = f"{_WANTED} of {hidden_size} values, in full"
        if is_sample_string(text):  # the two kinds of string look alike
            wanted += (
                "; this one holds the codes of an audio sample, which is the `prompt` of a voice "
                "in voices.json and no voice by itself"
            )
        raise InvalidRequestError.of(field, text, wanted) from None
    vector = np.frombuffer(raw, dtype="<f2").astype(np.float16)
    if not np.isfinite(vector).all():
        raise InvalidRequestError.of(field, text, f"{_WANTED} of finite values")
    return vector


def encode_speaker(vector: npt.NDArray[Any]) -> str:
    """Write a speaker string, in float16 whatever came: (H,) -> text.

    Raises:
        InvalidRequestError: A value is not finite in float16.
    """
    with np.errstate(over="ignore"):
        half = np.asarray(vector).astype("<f2")
    if half.ndim != 1 or half.size == 0 or not np.isfinite(half).all():
        raise InvalidRequestError("VOICE: wanted a vector (hidden,) of values finite in float16")
    return to_base16384(compress(half.tobytes()))
