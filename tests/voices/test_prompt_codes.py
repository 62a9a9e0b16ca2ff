import lzma
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase16384
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from voices_fixtures import SAMPLE_STRING, random_codes

from chattts_triton.config import MAX_PROMPT_CODES
from chattts_triton.errors import InvalidRequestError
from chattts_triton.voices.prompt_codes import (
    decode_prompt_codes,
    encode_prompt_codes,
    is_sample_string,
)
from chattts_triton.voices.speaker import encode_speaker

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def sample_string(shape: tuple[int, ...], raw: bytes, tail: bytes = b"") -> str:
    header = struct.pack(f"<{len(shape)}H", *shape)
    packed = lzma.compress(raw, format=lzma.FORMAT_RAW, filters=FILTERS)
    return pybase16384.encode_to_string(header + packed + tail)


CODES = {
    "one step": random_codes(1),
    "a second": random_codes(47, seed=1),
    "all equal": np.full((600, 4), 7, np.int32),
    "a pattern": np.tile(random_codes(13, seed=2), (50, 1)),
    "the longest": random_codes(MAX_PROMPT_CODES, seed=3),
}


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_a_sample_string_is_upstreams_byte_for_byte(
    codes: npt.NDArray[np.int32], upstream_speaker_class: Any
) -> None:
    text = encode_prompt_codes(codes)

    assert text == upstream_speaker_class.encode_prompt(torch.from_numpy(codes.T.copy()))
    assert np.array_equal(upstream_speaker_class.decode_prompt(text).numpy().T, codes)
    assert np.array_equal(decode_prompt_codes(text), codes)
    assert decode_prompt_codes(text).dtype == np.int32


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.integers(0, 2**32))
def test_any_codes_survive(num_codes: int, seed: int) -> None:
    codes = random_codes(num_codes, seed)

    assert np.array_equal(decode_prompt_codes(encode_prompt_codes(codes)), codes)


RAW = bytes(800)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("abc", id="abc"),
        pytest.param("你", id="one character"),
        pytest.param(SAMPLE_STRING[:-1], id="without its last character"),
        pytest.param(SAMPLE_STRING[: len(SAMPLE_STRING) // 8 * 4], id="half"),
        pytest.param(SAMPLE_STRING + SAMPLE_STRING, id="twice"),
        pytest.param(SAMPLE_STRING + "\n", id="line break"),
        pytest.param(sample_string((4,), b""), id="half a header and an empty stream"),
        pytest.param(pybase16384.encode_to_string(b"\4\0\1"), id="three bytes"),
        pytest.param(pybase16384.encode_to_string(b"\4\0\1\0"), id="header alone"),
        pytest.param(sample_string((4, 100), RAW[:-2]), id="one code less"),
        pytest.param(sample_string((4, 100), RAW + b"\0"), id="one byte more"),
        pytest.param(sample_string((4, 100), RAW, b"\0"), id="a byte behind the stream"),
        pytest.param(sample_string((2, 200), RAW), id="two codebooks"),
        pytest.param(sample_string((4, 0), b""), id="no steps"),
        pytest.param(sample_string((4, 8193), bytes(8 * 8193)), id="over three minutes"),
        pytest.param(sample_string((4, 100), bytes(1 << 26)), id="bomb of 64 MiB"),
        pytest.param(sample_string((4, 100), b"\x71\2" * 400), id="the end code"),
        pytest.param(encode_speaker(np.arange(768) / 768), id="speaker string"),
        pytest.param("一" * 20_000, id="too long"),
        pytest.param("\ud800", id="surrogate"),
    ],
)
def test_b_48_what_is_no_sample_string_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt: got .*wanted a ChatTTS sample string"):
        decode_prompt_codes(text)
    assert not is_sample_string(text)


@pytest.mark.parametrize("num_codes", [1025, 8192])
def test_b_48_a_sample_too_long_for_a_prompt_is_still_a_sample(num_codes: int) -> None:
    text = sample_string((4, num_codes), random_codes(num_codes).astype("<u2").tobytes())

    assert is_sample_string(text)
    with pytest.raises(InvalidRequestError, match=r"^prompt: got .* 1024 steps$"):
        decode_prompt_codes(text)


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.text(max_size=60),
        st.binary(max_size=200).map(pybase16384.encode_to_string),
        st.tuples(
            st.integers(0, len(SAMPLE_STRING) - 1),
            st.characters(min_codepoint=0x4E00, max_codepoint=0x8DFF),
        ).map(
            lambda change: SAMPLE_STRING[: change[0]] + change[1] + SAMPLE_STRING[change[0] + 1 :]
        ),
    )
)
def test_b_48_any_string_is_read_or_refused(text: str) -> None:
    try:
        codes = decode_prompt_codes(text)
    except InvalidRequestError as error:
        message = str(error)
    else:
        message = "prompt: "
        assert codes.ndim == 2
        assert np.array_equal(decode_prompt_codes(encode_prompt_codes(codes)), codes)
    assert message.startswith("prompt: ")


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((5, 3), np.int32), r"got codes of shape \[3, 5\]"),
        (np.zeros((0, 4), np.int32), r"got codes of shape \[4, 0\]"),
        (np.zeros((1025, 4), np.int32), r"got codes of shape \[4, 1025\]"),
        (np.zeros(4, np.int32), r"got codes of shape \[4\]"),
        (np.full((5, 4), 625, np.int32), "got codes from 625 to 625"),
        (np.full((5, 4), -1, np.int32), "got codes from -1 to -1"),
    ],
)
def test_codes_that_chattts_does_not_have_are_not_written(
    codes: npt.NDArray[np.int32], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^codes: {message}"):
        encode_prompt_codes(codes)
