"""What a listener would have heard."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.load.playout import gaps_s, play_out
from chattts_triton.load.take import Arrival


def stream(*pieces: tuple[float, int]) -> list[Arrival]:
    return [Arrival(at_s, num_samples) for at_s, num_samples in pieces]


def test_a_piece_that_comes_when_the_former_ends_is_in_time():
    assert play_out(stream((5.0, 24_000), (6.0, 24_000), (6.5, 100))).underruns_samples == ()


def test_one_sample_of_silence_is_an_underrun():
    late_s = 6.0 + 1 / SAMPLE_RATE_HZ

    playout = play_out(stream((5.0, 24_000), (late_s, 24_000)))

    assert playout.underruns_samples == (1,)


def test_part_of_a_sample_is_a_whole_sample_of_silence():
    late_s = 6.0 + 0.25 / SAMPLE_RATE_HZ

    assert play_out(stream((5.0, 24_000), (late_s, 24_000))).underruns_samples == (1,)


def test_a_silence_puts_off_what_follows():
    """The second piece is 1 s late; the third would be, had the player not waited already."""
    playout = play_out(stream((0.0, 24_000), (2.0, 24_000), (3.0, 24_000), (4.5, 24_000)))

    assert playout.underruns_samples == (24_000, 12_000)
    assert playout.silence_s == 1.5
    assert playout.longest_s == 1.0


def test_how_long_the_first_piece_takes_is_no_silence():
    assert play_out(stream((100.0, 24_000))).underruns_samples == ()


def test_pieces_without_samples_are_neither_played_nor_missed():
    playout = play_out(stream((0.0, 0), (1.0, 24_000), (9.0, 0)))

    assert playout.underruns_samples == ()
    assert playout.longest_s == 0.0


def test_no_pieces_have_no_silence():
    assert play_out([]).underruns_samples == ()


def test_a_clock_that_has_run_for_long_makes_no_silence_of_its_rounding():
    began_s = 1e8
    pieces = [(began_s + number * 0.1, 2_400) for number in range(100)]

    assert play_out(stream(*pieces)).underruns_samples == ()


@pytest.mark.parametrize("seed", range(20))
def test_silence_is_what_a_player_of_single_samples_counts(seed: int):
    """Times are whole samples here, so that the plain player needs no rounding."""
    draw = random.Random(seed)
    pieces, at = [], 0
    for _ in range(12):
        pieces.append((at, draw.randint(1, 50)))
        at += draw.randint(0, 60)

    silent, expected, now = 0, [], 0
    for came, num_samples in pieces:
        silent = max(0, came - now)
        if silent:
            expected.append(silent)
        now += silent + num_samples

    exact = [Arrival(float(Fraction(came, SAMPLE_RATE_HZ)), size) for came, size in pieces]
    assert play_out(exact).underruns_samples == tuple(expected)


def test_gaps_are_between_the_pieces_of_one_stream():
    assert gaps_s(stream((1.0, 5), (1.5, 5), (3.5, 0))) == [0.5, 2.0]
    assert gaps_s(stream((1.0, 5))) == []
