"""The official openai client against the gateway, and the gateway against a real tritonserver."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import soundfile
from gateway_harness import RunningGateway, pcm16_of, running_gateway
from triton_calls import RunningServer, running_server

TEXT = "你好, hello nine."
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server(tiny_repositories: dict[str, Path]) -> Iterator[RunningServer]:
    with running_server(tiny_repositories["fp32"], "--max-num-seqs=4") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: RunningServer) -> Iterator[RunningGateway]:
    book = server.repository / "preprocess" / "voices.json"
    with running_gateway(server.grpc_url, voices_file=book) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        api_key="none", base_url=f"{gateway.url}/v1", max_retries=0, timeout=WAIT_S
    ) as made:
        yield made


def test_a_call_gives_the_samples_of_triton(client: openai.OpenAI, server: RunningServer):
    options = {"seed": 42, "max_new_tokens": 40}
    spoken = server.speak_one(TEXT, SEED=42, MAX_NEW_TOKENS=40, SPEED=5, VOICE="alder")

    answer = client.audio.speech.create(
        input=TEXT, model="tts-1", voice="alder", response_format="wav", extra_body=options
    )
    samples, rate = soundfile.read(io.BytesIO(answer.read()), dtype="int16")

    assert rate == 24_000
    np.testing.assert_array_equal(samples, pcm16_of(spoken.pcm16))


def test_a_call_tells_seed_mode_and_how_it_ended(client: openai.OpenAI):
    answer = client.audio.speech.with_raw_response.create(
        input=TEXT, model="chattts", voice="alloy", extra_body={"max_new_tokens": 3}
    )

    assert int(answer.headers["X-ChatTTS-Seed"]) >= 0
    assert answer.headers["X-ChatTTS-Mode"] == "quality"
    assert answer.headers["X-ChatTTS-Finish-Reason"] == "length"
    assert answer.headers["Content-Type"] == "audio/mpeg"


def test_a_stream_gives_the_samples_of_triton_in_parts(
    client: openai.OpenAI, server: RunningServer
):
    options = {"seed": 42, "max_new_tokens": 100, "mode": "quality"}
    spoken = server.speak_one(TEXT, SEED=42, MAX_NEW_TOKENS=100, SPEED=5, VOICE="seed:2222")

    with client.audio.speech.with_streaming_response.create(
        input=TEXT,
        model="tts-1",
        voice="seed:2222",
        response_format="pcm",
        extra_body=options,
    ) as answer:
        parts = list(answer.iter_bytes())

    assert answer.headers["X-ChatTTS-Mode"] == "quality"
    np.testing.assert_array_equal(pcm16_of(b"".join(parts)), pcm16_of(spoken.pcm16))


def test_events_hold_the_bytes_of_the_stream_and_how_it_ended(client: openai.OpenAI):
    options = {"seed": 42, "max_new_tokens": 40}

    def speak(stream_format: str) -> bytes:
        with client.audio.speech.with_streaming_response.create(
            input=TEXT,
            model="tts-1",
            voice="alder",
            response_format="pcm",
            stream_format=stream_format,  # type: ignore[arg-type]
            extra_body=options,
        ) as answer:
            return answer.read()

    audio = speak("audio")
    lines = speak("sse").decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]

    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == audio
    assert done["type"] == "speech.audio.done"
    assert (done["seed"], done["mode"]) == (42, "low_latency")
    assert done["finish_reason"] in ("stop", "length")
    assert done["usage"]["input_tokens"] == len(TEXT)
    assert done["usage"]["output_tokens"] >= 1


def test_errors_are_those_of_the_client(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as wrong:
        client.audio.speech.create(input=TEXT, model="tts-1", voice="nobody-of-this-name")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.speech.create(input=TEXT, model="whisper-1", voice="alloy")

    assert (wrong.value.code, wrong.value.param) == ("invalid_request", "voice")
    assert unknown.value.code == "model_not_found"


def test_lists_name_models_and_voices(client: openai.OpenAI, gateway: RunningGateway):
    models = [model.id for model in client.models.list()]
    voices = [voice["name"] for voice in gateway.get("/v1/audio/voices").json["voices"]]

    assert models[0] == "chattts"
    assert {"alder", "birch", "alloy"} < set(voices)


def test_the_plain_form_gives_the_same_wav(gateway: RunningGateway, client: openai.OpenAI):
    plain = gateway.call("POST", "/api/tts", {"text": "hello", "speed": 5, "seed": 7})
    openai_s = gateway.speak("hello", seed=7, response_format="wav")

    assert plain.status == 200, plain.body
    assert plain.headers["Content-Type"] == "audio/wav"
    assert plain.body == openai_s.body


def test_the_gateway_is_ready_when_the_server_is(gateway: RunningGateway):
    assert gateway.get("/readyz").status == 200
