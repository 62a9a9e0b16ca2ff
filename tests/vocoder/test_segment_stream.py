"""Cuts, windows and fades of a segment's stream, on a voice that needs no model."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speech_like import decode_speech, step_numbers
from streamed_audio import Streamed, loudest_edge, stream_whole

from chattts_triton.constants import CONTEXT_CODES, SAMPLES_PER_CODE, num_audio_samples
from chattts_triton.errors import GenerationError, ModelLoadError
from chattts_triton.vocoder.chunks import ChunkSchedule
from chattts_triton.vocoder.segment_stream import SegmentStream, longest_cross_fade

GROWING = ChunkSchedule(12, 150, 96)


def evenly(size: int) -> ChunkSchedule:
    return ChunkSchedule(size, 100, size)


def decode_marks(hiddens: np.ndarray) -> np.ndarray:
    """A cheap stand-in whose samples tell their place and the window they are of."""
    first, num_codes = hiddens[0, 0], len(hiddens)
    place = SAMPLES_PER_CODE * first + np.arange(num_audio_samples(num_codes), dtype=np.float32)
    return place + np.float32(num_codes / 4)


@st.composite
def streams(draw) -> dict:
    """Arguments of a stream."""
    first = draw(st.integers(1, 30))
    look_ahead = draw(st.sampled_from([1, 2, 8, 30, CONTEXT_CODES]))
    return {
        "schedule": ChunkSchedule(first, draw(st.integers(100, 300)), draw(st.integers(first, 60))),
        "look_ahead_codes": look_ahead,
        "cross_fade_samples": draw(st.integers(0, longest_cross_fade(look_ahead))),
    }


def planned_stops(num_codes: int, schedule: ChunkSchedule, look_ahead_codes: int) -> list[int]:
    """Where the chunks of a segment of known length end, in steps."""
    stops, stop = [], 0
    for size in schedule.sizes():
        stop += size
        if num_codes - stop < look_ahead_codes:
            return [*stops, num_codes]
        stops.append(stop)
    raise AssertionError


def stream_as_it_comes(stream: SegmentStream, num_codes: int, arrival: random.Random) -> Streamed:
    """Steps come in random pieces; the end may be known before the last of them, or later."""
    hiddens, streamed = step_numbers(num_codes), Streamed()
    knows_end_at = arrival.randint(0, num_codes + 1)
    begin = 0
    while begin < num_codes:
        end = min(begin + arrival.choice([0, 1, 1, 5, 40, num_codes]), num_codes)
        if knows_end_at <= end:
            stream.end(num_codes)
        stream.append(hiddens[begin:end])
        streamed.take(stream, decode_marks)
        begin = end
    assert not stream.is_finished or knows_end_at <= num_codes
    stream.end(num_codes)
    streamed.take(stream, decode_marks)
    assert stream.is_finished
    return streamed


@settings(max_examples=200, deadline=None)
@given(arguments=streams(), num_codes=st.integers(1, 220), seed=st.integers(0, 2**32))
def test_the_same_steps_give_the_same_chunks_however_they_arrive(arguments, num_codes, seed):
    wanted = stream_whole(SegmentStream(**arguments), step_numbers(num_codes), decode_marks)

    got = stream_as_it_comes(SegmentStream(**arguments), num_codes, random.Random(seed))

    assert [chunk.tobytes() for chunk in got.chunks] == [c.tobytes() for c in wanted.chunks]


@settings(max_examples=100, deadline=None)
@given(arguments=streams(), num_codes=st.integers(1, 220))
def test_chunks_end_where_the_schedule_says_and_the_last_takes_what_is_left(arguments, num_codes):
    streamed = stream_whole(SegmentStream(**arguments), step_numbers(num_codes), decode_marks)

    *inner, last = planned_stops(num_codes, arguments["schedule"], arguments["look_ahead_codes"])
    assert streamed.edges == [SAMPLES_PER_CODE * stop for stop in inner]
    assert last == num_codes
    assert len(streamed.audio) == num_audio_samples(num_codes)
    if len(streamed.chunks) > 1:
        assert len(streamed.chunks[-1]) >= num_audio_samples(arguments["look_ahead_codes"])


@settings(max_examples=50, deadline=None)
@given(arguments=streams(), num_codes=st.integers(1, 220))
def test_a_window_holds_the_chunk_its_context_and_its_look_ahead(arguments, num_codes):
    stream, look_ahead = SegmentStream(**arguments), arguments["look_ahead_codes"]
    stream.append(step_numbers(num_codes))
    stream.end(num_codes)

    start = 0
    for stop in planned_stops(num_codes, arguments["schedule"], look_ahead):
        steps = stream.window()[:, 0].astype(int).tolist()
        stream.cut(decode_speech(stream.window()))

        behind = num_codes if stop == num_codes else stop + look_ahead
        assert steps == list(range(max(start - CONTEXT_CODES, 0), behind))
        start = stop


def test_the_next_chunk_wants_its_own_steps_and_the_look_ahead_or_the_end():
    stream = SegmentStream(GROWING, look_ahead_codes=8)
    hiddens = step_numbers(40)

    assert (stream.wanted_codes, stream.is_ready) == (20, False)
    stream.append(hiddens[:19])
    assert (stream.num_codes, stream.is_ready) == (19, False)
    stream.append(hiddens[19:20])
    assert stream.is_ready
    assert len(stream.cut(decode_speech(stream.window()))) == 12 * 512

    assert (stream.wanted_codes, stream.is_ready) == (38, False)
    stream.end(37)
    assert (stream.wanted_codes, stream.is_ready) == (37, False)
    stream.append(hiddens[20:37])
    assert stream.is_ready
    assert len(stream.cut(decode_speech(stream.window()))) == 25 * 512 - 256
    assert (stream.is_ready, stream.is_finished) == (False, True)


def test_a_chunk_that_is_exactly_followed_by_its_look_ahead_is_not_the_last():
    for knows_end in (False, True):
        stream = SegmentStream(evenly(12), look_ahead_codes=8)
        stream.append(step_numbers(20))
        if knows_end:
            stream.end(20)

        assert len(stream.cut(decode_speech(stream.window()))) == 12 * 512
        assert not stream.is_finished


@settings(max_examples=30, deadline=None)
@given(schedule=streams().map(lambda s: s["schedule"]), num_codes=st.integers(1, 300))
def test_with_the_whole_context_ahead_the_chunks_are_the_one_shot_audio(schedule, num_codes):
    hiddens = step_numbers(num_codes)

    streamed = stream_whole(SegmentStream(schedule), hiddens, decode_speech)

    assert np.abs(streamed.audio - decode_speech(hiddens)).max() <= 1e-6


def test_with_less_ahead_the_audio_is_near_the_one_shot_audio_but_not_equal():
    hiddens = step_numbers(200)
    one_shot = decode_speech(hiddens)

    distances = [
        np.abs(
            stream_whole(
                SegmentStream(GROWING, look_ahead_codes=look_ahead), hiddens, decode_speech
            ).audio
            - one_shot
        ).max()
        for look_ahead in (1, 4, 8, 16)
    ]

    assert distances == sorted(distances, reverse=True)
    assert 1e-4 < distances[-1] < distances[0] < 0.3


@pytest.mark.parametrize("size", range(1, 41))
@pytest.mark.parametrize(
    ("look_ahead", "fade"), [(52, 0), (12, 256), (8, 512), (8, 256), (4, 512), (2, 256), (1, 256)]
)
def test_no_edge_of_a_smooth_voice_clicks(size, look_ahead, fade):
    hiddens = step_numbers(130)
    stream = SegmentStream(evenly(size), look_ahead_codes=look_ahead, cross_fade_samples=fade)

    streamed = stream_whole(stream, hiddens, decode_speech)

    one_shot, is_known = decode_speech(hiddens), look_ahead >= 12
    assert loudest_edge(streamed, one_shot, beside_windows=not is_known) <= 1.0 + 1e-4


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12, 20, 40])
@pytest.mark.parametrize("look_ahead", [1, 2, 4, 8])
def test_the_same_edges_would_click_without_a_fade(size, look_ahead):
    hiddens = step_numbers(130)
    stream = SegmentStream(evenly(size), look_ahead_codes=look_ahead)

    streamed = stream_whole(stream, hiddens, decode_speech)

    assert loudest_edge(streamed, decode_speech(hiddens), beside_windows=True) > 1.05


def test_a_fade_goes_from_the_former_windows_version_to_the_chunks_own():
    hiddens = step_numbers(60)
    stream = SegmentStream(evenly(20), look_ahead_codes=4, cross_fade_samples=600)

    streamed = stream_whole(stream, hiddens, decode_speech)

    former, own = streamed.windows[0][20 * 512 :][:600], streamed.windows[1][20 * 512 :]
    chunk = streamed.chunks[1]
    assert np.abs(own[:600] - former).min() > 1e-2
    share = (chunk[:600] - former) / (own[:600] - former)
    assert share == pytest.approx(
        0.5 - 0.5 * np.cos(np.pi * (np.arange(600) + 0.5) / 600), abs=1e-4
    )
    assert np.array_equal(chunk[600:], own[600 : 20 * 512])
    assert np.array_equal(streamed.chunks[0], streamed.windows[0][: 20 * 512])


def test_a_fade_ends_within_a_chunk_that_is_shorter():
    hiddens = step_numbers(40)
    stream = SegmentStream(evenly(1), look_ahead_codes=8, cross_fade_samples=3840)

    streamed = stream_whole(stream, hiddens, decode_speech)

    assert loudest_edge(streamed, decode_speech(hiddens), beside_windows=True) <= 1.0 + 1e-4
    for index in range(1, 30):
        start = SAMPLES_PER_CODE * index - streamed.window_starts[index]
        own = streamed.windows[index][start : start + SAMPLES_PER_CODE]
        assert np.abs(streamed.chunks[index][-1] - own[-1]) < 1e-5


def test_the_audio_of_a_window_may_be_overwritten_once_the_chunk_is_cut():
    hiddens = step_numbers(60)
    plain, stream = (
        SegmentStream(evenly(10), look_ahead_codes=8, cross_fade_samples=512) for _ in range(2)
    )
    wanted = stream_whole(plain, hiddens, decode_speech).audio

    stream.append(hiddens)
    stream.end(60)
    chunks = []
    while not stream.is_finished:
        audio = decode_speech(stream.window())
        untouched = audio.copy()
        chunks.append(stream.cut(audio))
        assert np.array_equal(audio, untouched)
        audio.fill(np.nan)

    assert np.array_equal(np.concatenate(chunks), wanted)


@pytest.mark.parametrize("steps_at_once", [1, 2000])
def test_states_that_no_later_window_needs_are_dropped(steps_at_once):
    stream, hiddens = SegmentStream(evenly(10), look_ahead_codes=8), step_numbers(2000)
    kept, cut = [], 0

    for begin in range(0, 2000, steps_at_once):
        stream.append(hiddens[begin : begin + steps_at_once])
        while stream.is_ready:
            window = stream.window()
            kept.append(len(window.base) - (stream.num_codes - cut))  # besides what is unread
            cut += len(stream.cut(decode_marks(window))) // SAMPLES_PER_CODE

    assert len(kept) == 199
    assert max(kept) == CONTEXT_CODES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"look_ahead_codes": 0}, "look_ahead_codes: got 0, wanted 1 to 52"),
        ({"look_ahead_codes": 53}, "look_ahead_codes: got 53, wanted 1 to 52"),
        ({"cross_fade_samples": -1}, "cross_fade_samples: got -1, wanted 0 to 26368"),
        (
            {"look_ahead_codes": 1, "cross_fade_samples": 257},
            "cross_fade_samples: got 257, wanted 0 to 256 for a look-ahead of 1 step",
        ),
    ],
)
def test_a_look_ahead_or_a_fade_out_of_range_is_refused(arguments, message):
    with pytest.raises(ModelLoadError, match=message):
        SegmentStream(GROWING, **arguments)


def test_audio_of_another_length_than_the_windows_is_an_error():
    stream = SegmentStream(evenly(10), look_ahead_codes=8)
    stream.append(step_numbers(18))

    with pytest.raises(GenerationError, match="8959 samples of audio for 18 code steps"):
        stream.cut(decode_speech(stream.window())[:-1])


@pytest.mark.parametrize(("total_codes", "shown"), [(0, 5), (4, 5)])
def test_a_segment_cannot_end_before_what_came(total_codes, shown):
    stream = SegmentStream(GROWING)
    stream.append(step_numbers(5))

    with pytest.raises(GenerationError, match=f"ended after {total_codes} code steps, not {shown}"):
        stream.end(total_codes)


def test_a_segment_without_steps_is_an_error():
    with pytest.raises(GenerationError, match="ended after 0 code steps"):
        SegmentStream(GROWING).end(0)


def test_the_end_may_be_told_again_but_not_moved():
    stream = SegmentStream(GROWING)
    stream.end(9)
    stream.end(9)

    with pytest.raises(GenerationError, match="ended after 10 code steps, not 9"):
        stream.end(10)
    with pytest.raises(GenerationError, match="10 code steps of a segment of 9"):
        stream.append(step_numbers(10))
