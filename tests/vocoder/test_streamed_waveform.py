"""Streamed audio against the one-shot audio of the real waveform graph."""

from __future__ import annotations

import random

import numpy as np
import pytest
from streamed_audio import loudest_edge, stream_whole

from chattts_triton.config import StreamConfig
from chattts_triton.constants import CONTEXT_CODES, SAMPLES_PER_CODE, SHORT_CONTEXT_CODES
from chattts_triton.vocoder.chunks import ChunkSchedule
from chattts_triton.vocoder.segment_stream import SegmentStream

LARGEST_DIFFERENCE = 1e-5
LENGTHS = (1, 2, 7, 53, 100, 257)
# Modes by name: context and look-ahead in steps, and samples of the fade.
QUALITY = (CONTEXT_CODES, CONTEXT_CODES, 0)
LOW_LATENCY = (
    SHORT_CONTEXT_CODES,
    StreamConfig().look_ahead_codes,
    StreamConfig().cross_fade_samples,
)
SHORTEST_LOOK_AHEAD = (CONTEXT_CODES, 1, 256)
HARD_CUTS = (CONTEXT_CODES, 1, 0)


def stream_of(schedule: ChunkSchedule, mode: tuple[int, int, int]) -> SegmentStream:
    context, look_ahead, fade = mode
    return SegmentStream(
        schedule,
        context_codes=context,
        look_ahead_codes=look_ahead,
        cross_fade_samples=fade,
    )


def evenly(size: int) -> ChunkSchedule:
    return ChunkSchedule(size, 100, size)


def random_schedule(seed: int) -> ChunkSchedule:
    draw = random.Random(seed)
    first = draw.randint(1, 40)
    return ChunkSchedule(first, draw.randint(100, 250), draw.randint(first, 120))


@pytest.mark.parametrize("num_codes", LENGTHS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 24, 48, 60, 300])
def test_chunks_of_quality_are_the_one_shot_audio(tiny_decoder, generated_hiddens, num_codes, size):
    """B-54."""
    hiddens = generated_hiddens[:num_codes]

    streamed = stream_whole(stream_of(evenly(size), QUALITY), hiddens, tiny_decoder.decode)

    one_shot = tiny_decoder.decode(hiddens)
    assert len(streamed.audio) == len(one_shot)
    assert np.abs(streamed.audio - one_shot).max() <= LARGEST_DIFFERENCE


@pytest.mark.parametrize("seed", range(12))
def test_chunks_of_any_schedule_are_the_one_shot_audio(tiny_decoder, generated_hiddens, seed):
    hiddens = generated_hiddens[: random.Random(seed).randint(60, 257)]

    streamed = stream_whole(stream_of(random_schedule(seed), QUALITY), hiddens, tiny_decoder.decode)

    assert len(streamed.chunks) > 1
    assert np.abs(streamed.audio - tiny_decoder.decode(hiddens)).max() <= LARGEST_DIFFERENCE


@pytest.mark.parametrize("size", range(1, 41))
@pytest.mark.parametrize("mode", [QUALITY, LOW_LATENCY])
def test_no_chunk_of_any_size_begins_with_a_click(tiny_decoder, generated_hiddens, size, mode):
    """B-54."""
    hiddens = generated_hiddens[:130]

    streamed = stream_whole(stream_of(evenly(size), mode), hiddens, tiny_decoder.decode)

    assert loudest_edge(streamed, tiny_decoder.decode(hiddens)) <= 1.0


@pytest.mark.parametrize("size", range(1, 41))
def test_no_fade_adds_a_click_to_what_the_shortest_look_ahead_sounds_like(
    tiny_decoder, generated_hiddens, size
):
    hiddens = generated_hiddens[:130]

    streamed = stream_whole(
        stream_of(evenly(size), SHORTEST_LOOK_AHEAD), hiddens, tiny_decoder.decode
    )

    one_shot = tiny_decoder.decode(hiddens)
    assert loudest_edge(streamed, one_shot, beside_windows=True) <= 1.0 + 1e-4


def test_hard_cuts_with_a_short_look_ahead_would_click(tiny_decoder, generated_hiddens):
    hiddens = generated_hiddens[:130]

    streamed = stream_whole(stream_of(evenly(12), HARD_CUTS), hiddens, tiny_decoder.decode)

    one_shot = tiny_decoder.decode(hiddens)
    assert loudest_edge(streamed, one_shot, beside_windows=True) > 1.05


@pytest.mark.parametrize("num_codes", LENGTHS)
def test_low_latency_gives_as_many_samples_and_nearly_the_same(
    tiny_decoder, generated_hiddens, num_codes
):
    hiddens = generated_hiddens[:num_codes]
    schedule = ChunkSchedule(12, 150, 96)

    streamed = stream_whole(stream_of(schedule, LOW_LATENCY), hiddens, tiny_decoder.decode)

    one_shot = tiny_decoder.decode(hiddens)
    assert len(streamed.audio) == len(one_shot)
    assert np.abs(streamed.audio - one_shot).max() < 0.2 * np.abs(one_shot).max()


@pytest.mark.parametrize("schedule", [(12, 150, 96), (30, 100, 30), (1, 1000, 300)])
def test_full_weights_stream_the_one_shot_audio(full_decoder, schedule):
    hiddens = np.random.default_rng(5).standard_normal((257, 768), dtype=np.float32)

    streamed = stream_whole(
        stream_of(ChunkSchedule(*schedule), QUALITY), hiddens, full_decoder.decode
    )

    assert len(streamed.chunks) > 1
    assert np.abs(streamed.audio - full_decoder.decode(hiddens)).max() <= LARGEST_DIFFERENCE


def test_a_step_reaches_no_sample_beyond_the_context_on_either_side(full_decoder):
    """What `CONTEXT_CODES` says of the published dims."""
    hiddens = np.random.default_rng(6).standard_normal((160, 768), dtype=np.float32)
    changed = hiddens.copy()
    changed[80] += 3.0

    (touched,) = np.nonzero(full_decoder.decode(changed) != full_decoder.decode(hiddens))

    assert touched[0] >= SAMPLES_PER_CODE * (80 - CONTEXT_CODES)
    assert touched[-1] < SAMPLES_PER_CODE * (80 + CONTEXT_CODES + 1)
    # The bound is not far off either: weights of one part in a million reach so far.
    assert touched[0] < SAMPLES_PER_CODE * 50
    assert touched[-1] > SAMPLES_PER_CODE * 110
