"""Silence at the ends, and pauses between segments."""

from __future__ import annotations

import numpy as np
import pytest

from chattts_triton.vocoder.joining import join_segments, trim_silence

RATE = 24_000
KEPT = RATE * 50 // 1000


def silence(seconds: float, level: float = 0.0):
    return np.full(round(seconds * RATE), level, dtype=np.float32)


def tone(seconds: float):
    return np.sin(np.arange(round(seconds * RATE), dtype=np.float32)) * np.float32(0.5) + 0.6


def test_silence_at_both_ends_is_cut_to_50_ms_and_inner_silence_stays():
    speech = np.concatenate([tone(0.1), silence(0.4), tone(0.1)])

    trimmed = trim_silence(np.concatenate([silence(0.3), speech, silence(0.5)]))

    assert np.array_equal(trimmed, np.concatenate([silence(0.05), speech, silence(0.05)]))


@pytest.mark.parametrize(("level", "is_cut"), [(0.0009, True), (0.0011, False)])
def test_silence_means_below_60_db_under_full_scale(level, is_cut):
    audio = np.concatenate([silence(0.3, level), tone(0.1), silence(0.3, -level)])

    assert (len(trim_silence(audio)) < len(audio)) == is_cut


def test_less_than_50_ms_of_silence_is_left_alone():
    audio = np.concatenate([silence(0.02), tone(0.1), silence(0.01)])

    assert np.array_equal(trim_silence(audio), audio)


def test_nothing_but_silence_becomes_50_ms_of_it():
    assert len(trim_silence(silence(2.0))) == KEPT


def test_segments_are_joined_in_order_with_their_pauses():
    joined = join_segments([tone(0.01), tone(0.02)], [100, 0])

    assert np.array_equal(
        joined, np.concatenate([tone(0.01), np.zeros(100, np.float32), tone(0.02)])
    )
    assert joined.dtype == np.float32
