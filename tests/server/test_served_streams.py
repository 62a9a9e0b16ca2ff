"""`chattts_stream` on the real server: its chunks against the one-shot audio."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from stream_calls import MODEL, Chunk, StreamCall, samples_of, stream, stream_error
from triton_calls import TIMEOUT_S, RunningServer

from chattts_triton.config import StreamConfig
from chattts_triton.constants import SAMPLES_PER_CODE, num_audio_samples

TEXT = "你好，世界。今天天气怎么样？我们去公园走走吧。"
# Two sentences that are too long to be spoken in one segment.
LONG_TEXT = "我们今天下午一起去公园里散步，看看湖边的花。" * 8
CONFIG = StreamConfig()
TOLERANCE = 1e-5
AROUND_EDGE = 1024  # samples on either side


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("text", ["好", TEXT, LONG_TEXT])
def test_the_joined_chunks_of_quality_are_the_audio_of_chattts(
    server: RunningServer, text: str, seed: int
):
    one_shot = server.speak_one(text, SEED=seed)

    chunks = stream(server, text, SEED=seed, MODE="quality")

    joined = samples_of(chunks)
    assert joined.shape == one_shot.samples.shape
    assert np.abs(joined - one_shot.samples).max() <= TOLERANCE
    assert chunks[-1].finish_reason == one_shot.finish_reason
    assert {chunk.seed for chunk in chunks} == {seed}
    pcm16 = np.concatenate([chunk.pcm16 for chunk in chunks]).astype(int)
    assert np.abs(pcm16 - np.frombuffer(one_shot.pcm16, np.int16)).max() <= 1


@pytest.mark.parametrize("mode", ["quality", "low_latency"])
@pytest.mark.parametrize("options", [{"TRIM": True}, {"REFINE": True}, {"SPEED": 2}])
def test_options_mean_in_a_stream_what_they_mean_in_a_call(
    server: RunningServer, mode: str, options: dict[str, object]
):
    one_shot = server.speak_one(TEXT, SEED=4, **options)

    joined = samples_of(stream(server, TEXT, SEED=4, MODE=mode, **options))

    # TRIM finds the first loud sample, which low_latency may tell slightly differently.
    assert abs(len(joined) - len(one_shot.samples)) <= (50 if mode == "low_latency" else 0)
    if mode == "quality":
        assert np.abs(joined - one_shot.samples).max() <= TOLERANCE


def test_a_stream_gives_the_same_samples_whatever_else_the_server_does(server: RunningServer):
    alone = [chunk.samples.tobytes() for chunk in stream(server, TEXT, SEED=7, MODE="low_latency")]

    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(server.speak_one, TEXT, SEED=100 + i) for i in range(3)]
        streams = [pool.submit(stream, server, TEXT, SEED=7, MODE="low_latency") for _ in range(3)]
        beside = [[chunk.samples.tobytes() for chunk in each.result()] for each in streams]
        for other in others:
            other.result()

    assert beside == [alone] * 3


def test_chunks_are_numbered_and_only_the_last_one_says_how_it_ended(server: RunningServer):
    chunks = stream(server, TEXT, SEED=1, MAX_NEW_TOKENS=60, MODE="low_latency")

    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]
    assert {chunk.mode for chunk in chunks} == {"low_latency"}
    assert len(samples_of(chunks)) == num_audio_samples(60)


def test_chunks_grow_from_the_first_to_the_largest(server: RunningServer):
    chunks = stream(server, TEXT, SEED=1, MAX_NEW_TOKENS=400, TEMPERATURE=1.0, MODE="low_latency")

    sizes = [len(chunk.samples) // SAMPLES_PER_CODE for chunk in chunks[:-1]]
    assert sizes[0] == CONFIG.first_chunk_codes
    assert sizes == sorted(sizes)
    assert max(sizes) <= CONFIG.max_chunk_codes
    assert len(sizes) > 3


def test_the_first_chunk_of_a_long_text_leaves_before_half_of_the_time(server: RunningServer):
    with StreamCall(server, LONG_TEXT, SEED=2, MODE="quality") as call:
        chunks = call.chunks()

    first_s, total_s = (chunk.at_s - call.start_s for chunk in (chunks[0], chunks[-1]))
    assert first_s < total_s / 2


@pytest.mark.parametrize("mode", ["quality", "low_latency"])
def test_no_chunk_edge_clicks(server: RunningServer, mode: str):
    one_shot = server.speak_one(TEXT, SEED=3).samples

    chunks = stream(server, TEXT, SEED=3, MODE=mode)

    joined = samples_of(chunks)
    edges = np.cumsum([len(chunk.samples) for chunk in chunks])[:-1]
    assert len(edges) > 1
    for edge in edges:
        around = one_shot[max(edge - AROUND_EDGE, 0) : edge + AROUND_EDGE]
        step = abs(float(joined[edge]) - float(joined[edge - 1]))
        assert step <= np.abs(np.diff(around)).max()


def test_auto_says_what_it_took(server: RunningServer):
    chunks = stream(server, TEXT, SEED=1)

    (mode,) = {chunk.mode for chunk in chunks}
    again = stream(server, TEXT, SEED=1, MODE=mode)
    assert mode in ("quality", "low_latency")
    assert [c.samples.tobytes() for c in again] == [c.samples.tobytes() for c in chunks]


def test_the_mode_may_come_as_a_parameter_and_a_tensor_wins(server: RunningServer):
    by_parameter = stream(server, "你好", SEED=1, parameters={"mode": "low_latency"})
    both = stream(server, "你好", SEED=1, MODE="quality", parameters={"mode": "low_latency"})

    assert by_parameter[0].mode == "low_latency"
    assert both[0].mode == "quality"


def test_options_may_come_as_parameters_fractions_too(server: RunningServer):
    expected = stream(server, TEXT, SEED=1, TEMPERATURE=0.9, TOP_P=0.8, MODE="quality")

    by_parameter = stream(
        server, TEXT, parameters={"seed": 1, "temperature": 0.9, "top_p": 0.8, "mode": "quality"}
    )

    assert samples_of(by_parameter).tobytes() == samples_of(expected).tobytes()


def test_a_seed_that_nobody_chose_is_told_and_gives_the_same_again(server: RunningServer):
    first = stream(server, "你好", MODE="quality")

    again = stream(server, "你好", MODE="quality", SEED=first[0].seed)

    assert samples_of(again).tobytes() == samples_of(first).tobytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"MODE": "fast"},
            "chattts_stream: MODE: got 'fast', wanted quality or low_latency or auto",
        ),
        ({"MODE": b"\xff"}, "chattts_stream: MODE: got bytes that are not UTF-8"),
        ({"SPEED": 10}, "preprocess: SPEED: got 10, wanted 0 to 9"),
        ({"TEMPERATURE": 0.0}, "preprocess: TEMPERATURE: got 0.0, wanted 1e-06 to 10.0"),
        ({"VOICE": "nobody"}, "preprocess: VOICE: got 'nobody', wanted "),
    ],
)
def test_bad_options_are_refused_before_anything_is_generated(
    server: RunningServer, options: dict[str, object], text: str
):
    refusal = stream_error(server, "你好", **options)

    assert refusal.status == "invalid_request"
    assert refusal.text.startswith(text)


@pytest.mark.parametrize("text", ["", "   ", "!!!", "😀"])
def test_a_text_that_cannot_be_spoken_is_refused(server: RunningServer, text: str):
    refusal = stream_error(server, text)

    assert refusal.status == "invalid_request"
    assert refusal.text.startswith("preprocess: TEXT: got ")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"queue_priority": 3}, "preprocess: queue_priority: got 3, wanted 0 to 2"),
        ({"sped": 3}, "preprocess: 'sped': unknown parameter, known are "),
        ({"mode": "loud"}, "chattts_stream: MODE: got 'loud', wanted quality "),
        ({"mode": 3}, "chattts_stream: MODE: got 3, wanted quality "),
    ],
)
def test_bad_parameters_are_refused(
    server: RunningServer, parameters: dict[str, object], text: str
):
    refusal = stream_error(server, "你好", parameters=parameters)

    assert refusal.status == "invalid_request"
    assert refusal.text.startswith(text)


def test_http_generate_stream_sends_each_chunk_as_an_event(server: RunningServer):
    expected = stream(server, "你好", SEED=1, MODE="quality")
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{MODEL}/generate_stream",
        json.dumps({"TEXT": "你好", "SEED": 1, "MODE": "quality"}).encode(),
    )

    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]

    audio = np.concatenate([np.array(event["AUDIO"], np.float32) for event in events])
    np.testing.assert_allclose(audio, samples_of(expected), atol=1e-6)
    assert events[-1]["FINISH_REASON"] == expected[-1].finish_reason


def test_many_streams_at_once_get_each_their_own(server: RunningServer):
    def speak(seed: int) -> list[Chunk]:
        return stream(server, TEXT, SEED=seed, MAX_NEW_TOKENS=80, MODE="low_latency")

    expected = [samples_of(speak(seed)).tobytes() for seed in range(4)]
    with ThreadPoolExecutor(20) as pool:
        streams = list(pool.map(speak, [i % 4 for i in range(20)]))

    for i, chunks in enumerate(streams):
        assert samples_of(chunks).tobytes() == expected[i % 4]
    assert len(set(expected)) == 4
