"""`bench` against an HTTP server that plays the gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_gateway import NUM_SAMPLES, FakeGateway, wav_of

from chattts_triton.cli.main import main
from chattts_triton.load.gateway_speaker import gateway_speaker
from chattts_triton.load.take import Take
from chattts_triton.load.triton_speaker import VoiceOptions


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as server:
        yield server


def speak(gateway: FakeGateway, *, is_stream: bool = True, timeout_s: float = 20.0) -> Take:
    async def once() -> Take:
        options = VoiceOptions(max_new_tokens=30)
        async with gateway_speaker(
            gateway.url, "tts-1", options, is_stream=is_stream, timeout_s=timeout_s
        ) as speaker:
            return await speaker.speak("你好", 7)

    return asyncio.run(once())


def refusal(status: int, code: str) -> tuple[int, bytes]:
    return status, json.dumps({"error": {"code": code, "message": "why"}}).encode()


def test_a_stream_of_samples_is_counted_as_it_comes(gateway: FakeGateway):
    take = speak(gateway)

    assert take.num_samples == NUM_SAMPLES
    assert take.mode == "low_latency"
    assert take.failure is None
    assert gateway.bodies == [
        {
            "input": "你好",
            "seed": 7,
            "model": "tts-1",
            "max_new_tokens": 30,
            "response_format": "pcm",
            "stream_format": "audio",
        }
    ]


def test_a_whole_file_is_one_piece_and_tells_its_end(gateway: FakeGateway):
    take = speak(gateway, is_stream=False)

    assert [one.num_samples for one in take.arrivals] == [NUM_SAMPLES]
    assert take.is_cut
    assert gateway.bodies[0]["response_format"] == "wav"


@pytest.mark.parametrize(
    ("answer", "kind", "is_refusal"),
    [
        (refusal(429, "rate_limited"), "rate_limited", True),
        (refusal(503, "overloaded"), "overloaded", True),
        (refusal(503, "upstream_unavailable"), "upstream_unavailable", False),
        (refusal(500, "generation_failed"), "generation_failed", False),
        ((502, b"<html>bad gateway"), "http_502", False),
        ((503, b"[]"), "http_503", True),
    ],
)
def test_an_error_is_counted_by_its_code(
    gateway: FakeGateway, answer: tuple[int, bytes], kind: str, is_refusal: bool
):
    gateway.refusal = answer

    failure = speak(gateway).failure

    assert failure is not None
    assert (failure.kind, failure.is_refusal) == (kind, is_refusal)
    assert failure.message.startswith(f"{answer[0]}: ")


def test_a_stream_that_ends_abruptly_is_a_failure(gateway: FakeGateway):
    gateway.breaks = True

    take = speak(gateway)

    assert take.num_samples == NUM_SAMPLES
    assert take.failure is not None
    assert take.failure.kind == "unreachable"


@pytest.mark.parametrize("file", [b"ID3 is no WAV file", wav_of(0)])
def test_an_answer_without_samples_is_a_failure(gateway: FakeGateway, file: bytes):
    gateway.file = file

    failure = speak(gateway, is_stream=False).failure

    assert failure is not None
    assert (failure.kind, failure.is_refusal) == ("generation", False)


def test_a_gateway_that_says_nothing_is_late(gateway: FakeGateway):
    gateway.is_silent = True

    failure = speak(gateway, timeout_s=0.5).failure

    assert failure is not None
    assert failure.kind == "deadline_exceeded"


def test_the_command_takes_a_gateway_by_its_url(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "bench.json"
    monkeypatch.setenv("CHATTTS_API_KEY", "secret")
    arguments = ["--stream", "--concurrency=2", "--requests=4", f"--json={path}"]

    assert main(["bench", "--url", f"{gateway.url}/", *arguments]) == 0

    written = path.read_text(encoding="utf-8")
    assert json.loads(written)["num_answered"] == 4
    assert set(gateway.keys) == {"Bearer secret"}
    assert "secret" not in written


def test_a_gateway_that_cannot_speak_is_one_line(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
):
    gateway.is_ready = False

    assert main(["bench", "--url", gateway.url]) == 1

    err = capsys.readouterr().err
    assert err == f"chattts-triton bench: {gateway.url}/readyz: got status 503, wanted 200\n"
    assert gateway.bodies == []


def test_without_a_gateway_it_is_one_line(capsys: pytest.CaptureFixture[str]):
    with FakeGateway() as gone:
        url = gone.url

    assert main(["bench", "--url", url]) == 1

    err = capsys.readouterr().err
    assert err.startswith(f"chattts-triton bench: {url}: no gateway: ")
    assert err.count("\n") == 1


def test_without_the_http_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "chattts_triton.load.gateway_speaker")

    assert main(["bench", "--url", "http://127.0.0.1:1"]) == 1

    err = capsys.readouterr().err
    assert err == (
        "chattts-triton bench: httpx2 is not installed; pip install 'chattts-triton[gateway]'\n"
    )
