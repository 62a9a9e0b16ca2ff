"""Speaker embeddings: drawn from the checkpoint's statistics, or read from a speaker string.

A speaker string is base16384 text of a raw LZMA2 stream of float16 values, little-endian.
"""

from __future__ import annotations

import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase16384
import torch
from torch.nn.functional import normalize

from chattts_triton.errors import InvalidRequestError, ModelLoadError

# A window of 64 KiB holds any vector and gives upstream's strings byte for byte; its 64 MiB would
# be set aside for every string read, and ten times that for every one written.
_FILTERS: list[dict[str, int]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 16}
]

# 7 bytes are 4 characters of 14 bits from U+4E00 on; of a last group of r bytes only the
# characters that are needed follow, and then U+3D00 + r. The library trusts its input (it raises
# SystemError on some, and reads "abc" as nothing), so only whole strings of this form reach it.
_DIGIT = "[\u4e00-\u8dff]"
_BASE16384 = re.compile(
    f"(?:{_DIGIT}{{4}})*"
    f"(?:{_DIGIT}\u3d01|{_DIGIT}{{2}}[\u3d02\u3d03]|{_DIGIT}{{3}}[\u3d04\u3d05]|{_DIGIT}{{4}}\u3d06)?"
)
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
    # LZMA2 adds a few bytes to what it cannot compress, and a byte is 8/14 of a character.
    if len(text) > 2 * hidden_size + 64:
        raise InvalidRequestError(f"{field}: got {len(text)} characters, wanted {_WANTED}")
    if not _BASE16384.fullmatch(text):
        raise InvalidRequestError.of(field, text, _WANTED)
    num_bytes = 2 * hidden_size
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS)
    try:
        packed = pybase16384.decode_from_string(text)
        raw = decompressor.decompress(packed, max_length=num_bytes + 1)
    except lzma.LZMAError:
        raise InvalidRequestError.of(field, text, _WANTED) from None
    if len(raw) != num_bytes or not decompressor.eof or decompressor.unused_data:
        raise InvalidRequestError.of(field, text, f"{_WANTED} of {hidden_size} values, in full")
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
    packed = lzma.compress(half.tobytes(), format=lzma.FORMAT_RAW, filters=_FILTERS)
    text: str = pybase16384.encode_to_string(packed)
    return text
