"""Codes of an audio sample, and the ChatTTS sample string that holds them.

A sample string is base16384 of two numbers (codebooks and steps, 16 bits each) and a raw LZMA2
stream of the codes, 16 bits each, little-endian, one codebook after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.config import MAX_PROMPT_CODES
from chattts_triton.constants import CODES_PER_SECOND, NUM_VQ
from chattts_triton.errors import InvalidRequestError
from chattts_triton.voices.packed_string import (
    compress,
    decompress,
    from_base16384,
    max_characters,
    to_base16384,
)

MIN_SAMPLE_S = 1.0
MAX_SAMPLE_S = MAX_PROMPT_CODES / CODES_PER_SECOND
NUM_SPOKEN_CODES = 625  # 0 to 624; the next one ends a sequence
_MAX_KNOWN_CODES = 8192  # 3 minutes: 64 KiB, the window that strings are unpacked with
_HEADER_BYTES = 4
_WANTED = "a ChatTTS sample string"

PromptCodes = npt.NDArray[np.int32]


def encode_prompt_codes(codes: npt.NDArray[np.integer[Any]]) -> str:
    """Write a sample string: (P, num_vq) -> text.

    Raises:
        InvalidRequestError: The codes are of another shape, or one is no code of ChatTTS.

    Source:
        ChatTTS 0.2.5, `Speaker.encode_prompt`, behaviour only.
    """
    _check_shape("codes", codes.shape[::-1], MAX_PROMPT_CODES)
    _check_range("codes", codes)
    rows = np.ascontiguousarray(codes.T).astype("<u2")
    header = np.array(rows.shape, "<u2").tobytes()
    return to_base16384(header + compress(rows.tobytes()))


def decode_prompt_codes(
    text: str, field: str = "prompt", *, max_codes: int = MAX_PROMPT_CODES
) -> PromptCodes:
    """Read a sample string: (P, num_vq) int32, P at most `max_codes`.

    Raises:
        InvalidRequestError: It is no sample string, cut short or too long, or its codes are not
            ChatTTS's.

    Source:
        ChatTTS 0.2.5, `Speaker.decode_prompt`, behaviour only.
    """
    if len(text) > max_characters(2 * NUM_VQ * max_codes):
        raise InvalidRequestError(
            f"{field}: got {len(text)} characters, wanted {_WANTED} of at most {max_codes} steps"
        )
    try:
        data = from_base16384(text)
    except ValueError:
        raise InvalidRequestError.of(field, text, _WANTED) from None
    if len(data) < _HEADER_BYTES:
        raise InvalidRequestError.of(field, text, _WANTED)
    num_vq, num_codes = np.frombuffer(data[:_HEADER_BYTES], "<u2").tolist()
    _check_shape(field, (num_vq, num_codes), max_codes)
    try:
        raw = decompress(data[_HEADER_BYTES:], 2 * num_vq * num_codes)
    except ValueError:
        raise InvalidRequestError.of(field, text, f"{_WANTED}, in full") from None
    codes = np.frombuffer(raw, "<u2").reshape(num_vq, num_codes).T.astype(np.int32, order="C")
    _check_range(field, codes)
    return codes


def is_sample_string(text: str) -> bool:
    """Whether it holds the codes of a sample, be it one too long to be a prompt."""
    try:
        decode_prompt_codes(text, max_codes=_MAX_KNOWN_CODES)
    except InvalidRequestError:
        return False
    return True


def _check_shape(field: str, shape: tuple[int, ...], max_codes: int) -> None:
    if len(shape) != 2 or shape[0] != NUM_VQ or not 1 <= shape[1] <= max_codes:
        raise InvalidRequestError(
            f"{field}: got codes of shape {list(shape)}, wanted {_WANTED} of {NUM_VQ} codebooks "
            f"and 1 to {max_codes} steps"
        )


def _check_range(field: str, codes: npt.NDArray[np.integer[Any]]) -> None:
    if codes.min() < 0 or codes.max() >= NUM_SPOKEN_CODES:
        raise InvalidRequestError(
            f"{field}: got codes from {codes.min()} to {codes.max()}, wanted {_WANTED} of codes "
            f"from 0 to {NUM_SPOKEN_CODES - 1}"
        )
