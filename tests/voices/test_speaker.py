import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase16384
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from voices_fixtures import FULL_SIZE, HIDDEN_SIZE, SAMPLE_STRING, random_codes

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.prompt_codes import encode_prompt_codes
from chattts_triton.voices.speaker import (
    SpeakerStatistics,
    decode_speaker,
    encode_speaker,
    speaker_embedding,
)

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 16}]


def speaker_string(raw: bytes) -> str:
    return pybase16384.encode_to_string(lzma.compress(raw, format=lzma.FORMAT_RAW, filters=FILTERS))


def random_vector(seed: int, size: int = FULL_SIZE) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def plain_base16384(text: str) -> bytes:
    """The encoding as its definition says: 14 bits a character, the last tells how many bytes."""
    rest = ord(text[-1]) - 0x3D00 if text and ord(text[-1]) < 0x4E00 else 0
    digits = text[:-1] if rest else text
    bits = "".join(f"{ord(char) - 0x4E00:014b}" for char in digits)
    num_bytes = len(digits) // 4 * 7 if not rest else (len(digits) - 1) // 4 * 7 + rest
    return bytes(int(bits[8 * i : 8 * i + 8], 2) for i in range(num_bytes))


@pytest.fixture(scope="module")
def upstream_speaker(
    statistics_values: npt.NDArray[np.float16], upstream_speaker_class: Any
) -> Any:
    mean, deviation = statistics_values
    packed = pybase16384.encode_to_string(np.concatenate([deviation, mean]).tobytes())
    return upstream_speaker_class(HIDDEN_SIZE, packed)


@pytest.mark.parametrize("seed", [0, 1, 42, 2222, 2**31, 2**32 + 5, 2**63 - 1])
def test_b_32_a_drawn_voice_is_upstreams_of_the_same_seed(
    statistics: SpeakerStatistics, upstream_speaker: Any, seed: int
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        text = upstream_speaker.sample_random()

    assert encode_speaker(statistics.draw(seed)) == text
    assert np.array_equal(decode_speaker(text, HIDDEN_SIZE), statistics.draw(seed))


@pytest.mark.parametrize("seed", range(20))
def test_an_embedding_is_what_upstream_puts_into_the_prompt(
    statistics: SpeakerStatistics, upstream_speaker: Any, seed: int
) -> None:
    vector = statistics.draw(seed)
    embeds = torch.zeros(1, 3, HIDDEN_SIZE)
    ids = torch.tensor([[[5], [7], [9]]])

    upstream_speaker.apply(embeds, encode_speaker(vector), ids, 7, torch.device("cpu"))

    assert np.array_equal(speaker_embedding(vector), embeds[0, 1].numpy())
    assert speaker_embedding(vector).dtype == np.float32


def test_b_30_b_31_a_seed_is_one_voice_and_three_seeds_are_three(
    statistics: SpeakerStatistics,
) -> None:
    vectors = {statistics.draw(seed).tobytes() for seed in (1, 2, 3)}

    assert len(vectors) == 3
    assert statistics.draw(42).tobytes() == statistics.draw(42).tobytes()


def test_b_33_drawing_leaves_the_random_state_of_the_process_alone(
    statistics: SpeakerStatistics,
) -> None:
    before = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())

    statistics.draw(7)

    after = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
    assert after == before


def test_b_49_a_float32_vector_survives_up_to_the_rounding_of_float16() -> None:
    vector = random_vector(0)

    decoded = decode_speaker(encode_speaker(vector), FULL_SIZE)

    assert decoded.shape == (FULL_SIZE,)
    assert np.array_equal(decoded, vector.astype(np.float16))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 900), st.integers(0, 2**32))
def test_b_49_vectors_of_any_width_survive(size: int, seed: int) -> None:
    vector = random_vector(seed, size).astype(np.float16)

    assert np.array_equal(decode_speaker(encode_speaker(vector), size), vector)


@pytest.mark.parametrize(
    "vector",
    [np.array([1e6]), np.array([np.nan]), np.array([np.inf]), np.zeros((2, 2)), np.zeros(0)],
)
def test_a_vector_that_float16_cannot_hold_is_not_encoded(vector: npt.NDArray[Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^VOICE: wanted a vector"):
        encode_speaker(vector)


VALID = encode_speaker(random_vector(1))
INFINITE = random_vector(1).astype(np.float16)
INFINITE[5] = np.inf


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("abc", id="abc"),
        pytest.param("你", id="one character"),
        pytest.param(VALID[:-1], id="without its last character"),
        pytest.param(VALID[:-5], id="without its last group"),
        pytest.param(VALID[: len(VALID) // 8 * 4], id="half"),
        pytest.param(VALID + VALID, id="twice"),
        pytest.param(VALID + "㴆", id="tail twice"),
        pytest.param("a" + VALID, id="letter before"),
        pytest.param(" " + VALID, id="space before"),
        pytest.param(SAMPLE_STRING, id="audio sample"),
        pytest.param(speaker_string(b""), id="empty"),
        pytest.param(speaker_string(bytes(2 * FULL_SIZE - 2)), id="one value less"),
        pytest.param(speaker_string(bytes(2 * FULL_SIZE + 1)), id="one byte more"),
        pytest.param(speaker_string(random_vector(1).tobytes()), id="float32"),
        pytest.param(speaker_string(bytes(1 << 26)), id="bomb of 64 MiB"),
        pytest.param(speaker_string(INFINITE.tobytes()), id="infinite"),
        pytest.param("一" * 10_000, id="too long"),
        pytest.param("\ud800", id="surrogate"),
        pytest.param("㴆", id="tail alone"),
    ],
)
def test_b_48_what_is_no_speaker_string_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^VOICE\[2\]: got .*wanted a ChatTTS speaker"):
        decode_speaker(text, FULL_SIZE, "VOICE[2]")


@pytest.mark.parametrize("num_codes", [1, 100, 1024])
def test_b_48_a_sample_string_is_called_by_its_name(num_codes: int) -> None:
    text = encode_prompt_codes(random_codes(num_codes))

    with pytest.raises(InvalidRequestError, match=r"^VOICE: .* the codes of an audio sample, "):
        decode_speaker(text, FULL_SIZE)


def test_b_48_what_is_cut_short_is_not_called_a_sample() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_speaker(SAMPLE_STRING[:-1], FULL_SIZE)

    assert str(caught.value).endswith("wanted a ChatTTS speaker string of 768 values, in full")


BASE16384_CHARACTERS = st.characters(min_codepoint=0x4E00, max_codepoint=0x8DFF)
SPEAKER_LIKE = st.one_of(
    st.text(max_size=100),
    st.text(alphabet=BASE16384_CHARACTERS, max_size=200),
    st.tuples(
        st.text(alphabet=BASE16384_CHARACTERS, max_size=200), st.sampled_from("㴁㴂㴃㴄㴅㴆")
    ).map("".join),
    st.binary(max_size=300).map(pybase16384.encode_to_string),
    st.binary(max_size=200).map(speaker_string),
    st.tuples(st.integers(0, len(VALID) - 1), BASE16384_CHARACTERS).map(
        lambda change: VALID[: change[0]] + change[1] + VALID[change[0] + 1 :]
    ),
)


@settings(deadline=None, max_examples=600)
@given(SPEAKER_LIKE, st.sampled_from([1, 4, FULL_SIZE]))
@example(VALID, FULL_SIZE)
def test_b_48_any_string_is_read_or_refused(text: str, hidden_size: int) -> None:
    try:
        vector = decode_speaker(text, hidden_size)
    except InvalidRequestError as error:
        message = str(error)
    else:
        message = "VOICE: "
        assert vector.shape == (hidden_size,)
        assert np.isfinite(vector).all()
        assert np.array_equal(decode_speaker(encode_speaker(vector), hidden_size), vector)
    assert message.startswith("VOICE: ")


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_the_library_reads_base16384_as_its_definition_says(raw: bytes) -> None:
    text = pybase16384.encode_to_string(raw)

    assert plain_base16384(text) == pybase16384.decode_from_string(text) == raw


@pytest.mark.parametrize("value", [0.0, 60000.0])
def test_a_vector_of_no_direction_is_refused(value: float) -> None:
    vector = np.full(FULL_SIZE, value, np.float16)

    with pytest.raises(InvalidRequestError, match=r"^VOICE: got a vector of no direction"):
        speaker_embedding(vector)


def test_an_embedding_has_length_one() -> None:
    unit = speaker_embedding(random_vector(3).astype(np.float16))

    assert np.linalg.norm(unit) == pytest.approx(1, abs=2e-3)  # each value is rounded to float16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 4), np.float32), "float32 (2, 4), wanted float16 (2, hidden)"),
        (np.zeros((3, 4), np.float16), "float16 (3, 4), wanted float16 (2, hidden)"),
        (np.zeros(8, np.float16), "float16 (8,), wanted float16 (2, hidden)"),
        (np.zeros((2, 0), np.float16), "wanted finite values"),
        (np.full((2, 4), np.nan, np.float16), "wanted finite values"),
    ],
)
def test_statistics_of_another_shape_are_a_load_error(
    tmp_path: Path, values: npt.NDArray[Any], message: str
) -> None:
    path = tmp_path / "speaker_statistics.npy"
    np.save(path, values)

    with pytest.raises(ModelLoadError) as caught:
        SpeakerStatistics(path)

    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\x93NUMPY\x01\x00"])
def test_missing_or_damaged_statistics_are_a_load_error(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "speaker_statistics.npy"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ModelLoadError, match=r"speaker_statistics\.npy: cannot be read"):
        SpeakerStatistics(path)


def test_an_archive_of_statistics_is_a_load_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "statistics.npz", np.zeros((2, 4), np.float16))

    with pytest.raises(ModelLoadError, match="an archive, wanted one array"):
        SpeakerStatistics(tmp_path / "statistics.npz")
