"""What a request asks of Triton, and what its answer tells."""

from __future__ import annotations

import pytest
from fake_triton import FakeTriton, fake_pcm16, fake_samples
from gateway_harness import RunningGateway, pcm16_of

from chattts_client import OptionArguments
from chattts_triton.gateway.speech_options import SpeechRequest

OF_THE_CALL = {"queue_priority"}  # who waits for whom is not for callers to say


def test_every_option_of_the_client_has_a_field():
    assert set(OptionArguments.__annotations__) - OF_THE_CALL <= set(SpeechRequest.model_fields)


def test_every_option_reaches_triton(triton: FakeTriton, gateway: RunningGateway):
    sent = {
        "seed": 5,
        "voice": "seed:3",
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "repetition_penalty": 1.5,
        "max_new_tokens": 3,
        "refine": True,
        "lang": "en",
        "trim": True,
        "mode": "auto",
    }

    answer = gateway.speak(speed=2.0, response_format="pcm", **sent)

    assert answer.status == 200, answer.body
    inputs = {name: values for name, (_, _, values) in triton.last_inputs.items()}
    wanted = {name.upper(): [value] for name, value in sent.items()}
    for name in ("VOICE", "LANG", "MODE"):
        wanted[name] = [wanted[name][0].encode()]
    assert inputs == {"TEXT": [b"hello"], "SPEED": [8], **wanted}


def test_what_is_left_out_is_left_to_the_server(triton: FakeTriton, gateway: RunningGateway):
    gateway.speak()

    assert set(triton.last_inputs) == {"TEXT", "SPEED", "MODE"}
    assert triton.last_inputs["SPEED"][2] == [5]


@pytest.mark.parametrize(
    ("options", "mode", "is_chunked"),
    [
        ({}, "quality", False),
        ({"response_format": "wav"}, "quality", False),
        ({"stream_format": "audio"}, "low_latency", True),
        ({"stream_format": "sse"}, "low_latency", True),
        ({"response_format": "pcm"}, "low_latency", True),
        ({"mode": "low_latency"}, "low_latency", False),
        ({"response_format": "pcm", "mode": "quality"}, "quality", True),
    ],
)
def test_a_file_has_a_length_and_quality_and_a_stream_is_early(
    triton: FakeTriton,
    gateway: RunningGateway,
    options: dict[str, str],
    mode: str,
    is_chunked: bool,
):
    answer = gateway.speak(**options)

    assert triton.last_inputs["MODE"][2] == [mode.encode()]
    assert answer.headers["X-ChatTTS-Mode"] == mode
    assert ("Content-Length" in answer.headers) is not is_chunked
    assert (answer.headers.get("Transfer-Encoding") == "chunked") is is_chunked
    assert ("X-ChatTTS-Finish-Reason" in answer.headers) is not is_chunked


@pytest.mark.parametrize(
    ("response_format", "media_type"),
    [
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm;rate=24000;channels=1"),
    ],
)
@pytest.mark.parametrize("stream_format", [None, "audio"])
def test_a_format_has_its_media_type(
    gateway: RunningGateway, response_format: str, media_type: str, stream_format: str | None
):
    answer = gateway.speak(response_format=response_format, stream_format=stream_format)

    assert answer.headers["Content-Type"] == media_type


def test_the_samples_are_the_server_s_own_16_bit_ones(gateway: RunningGateway):
    answer = gateway.speak("hello", seed=5, response_format="pcm")

    assert (pcm16_of(answer.body) == fake_pcm16(fake_samples("hello", 5))).all()


def test_an_answer_tells_the_seed_that_was_drawn_and_a_cut(gateway: RunningGateway):
    answer = gateway.speak("hello", max_new_tokens=2)
    again = gateway.speak("hello", max_new_tokens=2, seed=int(answer.headers["X-ChatTTS-Seed"]))

    assert answer.headers["X-ChatTTS-Finish-Reason"] == "length"
    assert answer.headers["X-ChatTTS-Warnings"] == "refine_refused"
    assert again.body == answer.body
