"""The text form that ChatTTS gives to arrays: base16384 of a raw LZMA2 stream.

Both steps trust nothing that came from a caller.
"""

from __future__ import annotations

import lzma
import re

import pybase16384

# A window of 64 KiB holds any array of ours and gives upstream's strings byte for byte; its 64 MiB
# would be set aside for every string read, and ten times that for every one written.
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


def max_characters(num_bytes: int) -> int:
    """No string of so many bytes is longer than this.

    LZMA2 adds a few bytes to what it cannot compress, and a byte is 8/14 of a character.
    """
    return num_bytes + 64


def to_base16384(data: bytes) -> str:
    """Bytes to text."""
    text: str = pybase16384.encode_to_string(data)
    return text


def from_base16384(text: str) -> bytes:
    """Text to bytes.

    Raises:
        ValueError: The text is no whole base16384 string.
    """
    if not _BASE16384.fullmatch(text):
        raise ValueError("not base16384")
    data: bytes = pybase16384.decode_from_string(text)
    return data


def compress(raw: bytes) -> bytes:
    """The LZMA2 stream of some bytes, as upstream writes it."""
    return lzma.compress(raw, format=lzma.FORMAT_RAW, filters=_FILTERS)


def decompress(packed: bytes, num_bytes: int) -> bytes:
    """The bytes of an LZMA2 stream; no more than wanted are ever unpacked.

    Raises:
        ValueError: The stream is damaged, or does not hold exactly `num_bytes`.
    """
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS)
    try:
        raw = decompressor.decompress(packed, max_length=num_bytes + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None
    if len(raw) != num_bytes or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"wanted {num_bytes} bytes, in full")
    return raw
