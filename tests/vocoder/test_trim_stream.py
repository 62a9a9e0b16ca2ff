"""Trimming in pieces against `trim_silence` of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chattts_triton.vocoder.joining import KEPT_SAMPLES, trim_silence
from chattts_triton.vocoder.trim_stream import TrimStream

LOUD, QUIET = 0.5, 0.0005


@st.composite
def audios(draw) -> np.ndarray:
    """Sound and silence in turns, each shorter or longer than what is kept of silence."""
    lengths = st.one_of(
        st.integers(0, 40), st.integers(KEPT_SAMPLES - 2, KEPT_SAMPLES + 2), st.integers(0, 4000)
    )
    runs = draw(st.lists(st.tuples(lengths, st.sampled_from([LOUD, QUIET, 0.0])), max_size=7))
    audio = np.concatenate(
        [np.zeros(0, np.float32), *[np.full(n, level, np.float32) for n, level in runs]]
    )
    # Every sample has a value of its own, so that one too many or too few is seen.
    return audio * np.linspace(1.0, 1.4, len(audio), dtype=np.float32)


@st.composite
def audios_in_pieces(draw) -> list[np.ndarray]:
    audio = draw(audios())
    edges = draw(st.lists(st.integers(0, len(audio)), max_size=12))
    return np.split(audio, sorted(edges))


@settings(max_examples=400, deadline=None)
@given(pieces=audios_in_pieces())
def test_any_pieces_give_the_trimmed_whole_sample_for_sample(pieces):
    stream = TrimStream()

    trimmed = np.concatenate([*[stream.push(piece) for piece in pieces], stream.end()])

    assert trimmed.dtype == np.float32
    assert np.array_equal(trimmed, trim_silence(np.concatenate(pieces)))


@settings(max_examples=200, deadline=None)
@given(pieces=audios_in_pieces())
def test_all_that_is_sure_to_stay_comes_at_once(pieces):
    stream, given_samples = TrimStream(), 0

    for count in range(1, len(pieces) + 1):
        given_samples += len(stream.push(pieces[count - 1]))

        so_far = np.concatenate(pieces[:count])
        has_sound = bool((np.abs(so_far) >= 0.001).any())
        assert given_samples == (len(trim_silence(so_far)) if has_sound else 0)


@pytest.mark.parametrize("piece_samples", [1, 700, 1200, 5000])
@pytest.mark.parametrize("num_samples", [0, 1, 1199, 1200, 1201, 9000])
def test_nothing_but_silence_becomes_its_first_50_ms(num_samples, piece_samples):
    audio = np.linspace(0, QUIET, num_samples, dtype=np.float32)
    stream = TrimStream()

    pushed = [
        stream.push(audio[begin : begin + piece_samples])
        for begin in range(0, num_samples, piece_samples)
    ]

    assert not any(map(len, pushed))
    assert np.array_equal(stream.end(), audio[:KEPT_SAMPLES])


def test_silence_between_sounds_is_held_until_the_next_sound():
    stream, sound = TrimStream(), np.full(100, LOUD, np.float32)
    silence = np.full(2 * KEPT_SAMPLES, QUIET, np.float32)

    assert len(stream.push(sound)) == 100
    assert len(stream.push(silence)) == KEPT_SAMPLES
    assert len(stream.push(silence)) == 0
    assert len(stream.push(sound)) == 3 * KEPT_SAMPLES + 100
    assert len(stream.push(silence)) == KEPT_SAMPLES
    assert len(stream.end()) == 0
