"""16-bit PCM at a fixed scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chattts_triton.audio import Pcm16Converter, to_pcm16
from chattts_triton.errors import GenerationError


def floats(*values: float):
    return np.asarray(values, dtype=np.float32)


@pytest.mark.parametrize("seed", [None, 0, 42])
def test_silence_stays_silent_and_nothing_stays_nothing(seed):
    """B-56."""
    assert to_pcm16(floats(0, 0), seed).tolist() == [0, 0]
    assert to_pcm16(floats(), seed).tolist() == []
    assert to_pcm16(floats(), seed).dtype == np.int16


@pytest.mark.parametrize("peak", [0.5, 1.0, 1.0001, 3.0])
def test_the_scale_does_not_depend_on_the_peak(peak):
    """B-56."""
    pcm16 = to_pcm16(floats(peak, 0.5, -0.5))

    assert pcm16[0] == min(round(peak * 32767), 32767)
    assert pcm16[1] in (16383, 16384)
    assert pcm16[2] in (-16383, -16384)


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_full_scale_does_not_wrap(seed):
    """B-57."""
    high, low = to_pcm16(floats(1.0, -1.0), seed)

    assert high > 32760
    assert low < -32760
    assert seed is not None or (high, low) == (32767, -32767)


def test_nan_is_an_error():
    """B-56."""
    with pytest.raises(GenerationError, match="NaN"):
        to_pcm16(floats(np.nan, 0.1))


def test_dither_repeats_with_the_seed_and_stays_within_one_step():
    audio = np.sin(np.linspace(0, 60, 24_000, dtype=np.float32)) * np.float32(0.3)
    plain = to_pcm16(audio).astype(int)

    dithered = to_pcm16(audio, 42)

    assert np.array_equal(dithered, to_pcm16(audio, 42))
    assert not np.array_equal(dithered, to_pcm16(audio, 43))
    assert np.abs(dithered - plain).max() <= 2
    assert abs((dithered - audio * 32767).mean()) < 0.02


def test_dither_takes_the_error_off_the_signal():
    """A tone smaller than one step survives as its average, which plain rounding destroys."""
    audio = np.full(100_000, 0.3 / 32767, dtype=np.float32)

    assert to_pcm16(audio).mean() == 0.0
    assert abs(to_pcm16(audio, 1).mean() - 0.3) < 0.02


@settings(max_examples=200, deadline=None)
@given(
    seed=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    lengths=st.lists(st.integers(0, 70), max_size=20),
    silent=st.sets(st.integers(0, 19)),
)
def test_pieces_of_any_length_join_to_the_conversion_of_the_whole(seed, lengths, silent):
    """Odd lengths too, which leave half of a generator's 64-bit draw over; and silent pieces."""
    noise = np.random.default_rng(1)
    pieces = [
        noise.uniform(-1.1, 1.1, length).astype(np.float32) * np.float32(index not in silent)
        for index, length in enumerate(lengths)
    ]
    converter = Pcm16Converter(seed)

    joined = np.concatenate([floats().astype(np.int16), *map(converter.convert, pieces)])

    assert np.array_equal(joined, to_pcm16(np.concatenate([floats(), *pieces]), seed))


def test_silence_takes_its_part_of_the_dither():
    """The dither of a sample depends on its place alone, not on how much was silent before."""
    audio = np.full(1000, 0.25, dtype=np.float32)
    silent_at_first = audio.copy()
    silent_at_first[:333] = 0.0

    pcm16, other = to_pcm16(audio, 7), to_pcm16(silent_at_first, 7)

    assert not other[:333].any()
    assert np.array_equal(other[333:], pcm16[333:])


def test_both_halves_of_the_dither_are_drawn_apart():
    """Triangular: equal draws would cancel, and one alone would be even."""
    level = np.float32(1000.0 / 32767)  # on a step, so that the error is the rounded dither

    errors = to_pcm16(np.full(200_000, level, dtype=np.float32), 3).astype(int) - 1000

    shares = [np.mean(errors == step) for step in (-1, 0, 1)]
    assert shares == pytest.approx([0.125, 0.75, 0.125], abs=0.01)


def test_pieces_that_hold_nan_are_an_error():
    converter = Pcm16Converter(1)
    converter.convert(floats(0.1, 0.2))

    with pytest.raises(GenerationError, match="NaN"):
        converter.convert(floats(np.nan))
