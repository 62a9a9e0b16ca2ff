"""Health, lists and metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
from fake_triton import FakeTriton
from gateway_harness import RunningGateway, running_gateway, until
from prometheus_client.parser import text_string_to_metric_families

from chattts_triton.gateway.metrics import GatewayMetrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway.md"
UNUSED_PORT = "127.0.0.1:1"


def test_a_gateway_is_healthy_without_triton():
    with running_gateway(UNUSED_PORT) as gateway:
        assert gateway.get("/healthz").json == {"status": "ok"}


def test_a_gateway_is_ready_when_the_model_is(triton: FakeTriton, gateway: RunningGateway):
    triton.is_model_loaded = False
    without = gateway.get("/readyz")
    triton.is_model_loaded = True
    with_model = gateway.get("/readyz")

    assert (without.status, without.error["code"]) == (503, "upstream_unavailable")
    assert without.headers["Retry-After"] == "1"
    assert (with_model.status, with_model.json) == (200, {"status": "ready"})


def test_one_triton_that_is_ready_is_enough(triton: FakeTriton):
    with running_gateway(UNUSED_PORT, triton.url) as gateway:
        assert gateway.get("/readyz").status == 200


def test_triton_down_is_503_and_the_gateway_recovers_by_itself(triton: FakeTriton):
    with running_gateway(triton.url) as gateway:
        triton.__exit__()
        down = gateway.speak()
        with FakeTriton(triton.port):
            assert until(lambda: gateway.get("/readyz").status == 200)
            assert until(lambda: gateway.speak().status == 200)

    assert (down.status, down.error["code"]) == (503, "upstream_unavailable")
    assert down.headers["Retry-After"] == "1"


def test_a_request_keeps_its_id(gateway: RunningGateway):
    given = gateway.call("GET", "/healthz", headers={"X-Request-ID": "abc-1"})
    forged = gateway.call("GET", "/healthz", headers={"X-Request-ID": "a b; c"})
    failed = gateway.call("GET", "/nothing", headers={"X-Request-ID": "abc-2"})

    assert given.headers["X-Request-ID"] == "abc-1"
    assert re.fullmatch(r"[0-9a-f]{32}", forged.headers["X-Request-ID"])
    assert failed.headers["X-Request-ID"] == "abc-2"


def test_the_models_are_those_that_are_served_and_openai_s_names(triton: FakeTriton):
    with running_gateway(triton.url, models=("chattts", "demo")) as gateway:
        answer = gateway.get("/v1/models").json
        gateway.speak(model="demo", response_format="pcm")
        gateway.speak(model="tts-1-hd", response_format="pcm")

    names = [model["id"] for model in answer["data"]]
    assert names[:2] == ["chattts", "demo"]
    assert {"tts-1", "tts-1-hd", "gpt-4o-mini-tts"} < set(names)
    assert [each.model_name for each in triton.requests] == ["demo_stream", "chattts_stream"]


def test_the_voices_are_those_of_the_book_as_it_is_now(triton: FakeTriton, tmp_path: Path):
    book = tmp_path / "voices.json"
    book.write_text(json.dumps({"voices": {"ann": {"seed": 1, "description": "Of a test."}}}))
    with running_gateway(triton.url, voices_file=book) as gateway:
        before = gateway.get("/v1/audio/voices").json["voices"]
        book.write_text(json.dumps({"voices": {"alloy": {"seed": 5}, "bob": {"seed": 2}}}))
        after = gateway.get("/v1/audio/voices").json["voices"]
        book.write_text("{")
        broken = gateway.get("/v1/audio/voices").json["voices"]
        for voice in ("bob", "alloy", "nova", "seed:9"):
            gateway.speak(voice=voice, response_format="pcm")

    assert before[0] == {
        "id": "ann",
        "name": "ann",
        "description": "Of a test.",
        "language": "any",
    }
    assert [voice["name"] for voice in after[:2]] == ["alloy", "bob"]
    assert [voice["name"] for voice in after].count("alloy") == 1
    assert broken == after
    sent = [
        request.raw_input_contents[[each.name for each in request.inputs].index("VOICE")][4:]
        for request in triton.requests
    ]
    assert sent == [b"bob", b"alloy", b"seed:7", b"seed:9"]


def test_metrics_count_requests_audio_and_refusals(triton: FakeTriton, gateway: RunningGateway):
    speech = "/v1/audio/speech"
    answer = gateway.speak("abcd", response_format="pcm")
    gateway.speak(speed=9)
    triton.stream_steps = lambda inputs: [(grpc.StatusCode.INTERNAL, "gpt: it broke")]
    gateway.speak()
    gateway.get("/nothing-1")
    gateway.get("/nothing-2")

    assert gateway.metric("chattts_gateway_requests_total", path=speech, status="200") == 1
    assert gateway.metric("chattts_gateway_requests_total", path=speech, status="400") == 1
    assert gateway.metric("chattts_gateway_requests_total", path="other", status="404") == 2
    assert gateway.metric("chattts_gateway_refusals_total", code="invalid_value") == 1
    assert gateway.metric("chattts_gateway_upstream_errors_total", type="generation") == 1
    assert gateway.metric("chattts_gateway_time_to_first_audio_seconds_count") == 1
    audio_s = gateway.metric("chattts_gateway_audio_seconds_total")
    assert audio_s * 48_000 == len(answer.body)
    assert gateway.metric("chattts_gateway_requests_in_flight") == 1  # the one that asks
    assert gateway.metric("chattts_gateway_upstreams_up") == 1


def test_every_metric_is_documented(gateway: RunningGateway):
    page = gateway.get("/metrics")
    families = list(text_string_to_metric_families(page.body.decode()))
    made = {family.name for family in GatewayMetrics().registry.collect()}

    section = DOCUMENT.read_text(encoding="utf-8").split("\n## Metrics\n")[1].split("\n## ")[0]

    assert page.headers["Content-Type"].startswith("text/plain")
    assert made <= {family.name for family in families}
    documented = set(re.findall(r"(?m)^\| `(\w+)`", section))
    assert {name.removesuffix("_total") for name in documented} == made


def test_the_schema_has_every_path_with_examples_and_no_answer_that_is_never_given(
    gateway: RunningGateway,
):
    schema = gateway.get("/openapi.json").json

    assert set(schema["paths"]) == {
        *("/v1/audio/speech", "/v1/audio/voices", "/v1/models", "/api/tts"),
        *("/healthz", "/readyz", "/metrics"),
    }
    text = json.dumps(schema)
    assert '"422"' not in text
    assert "ValidationError" not in text
    for name in ("SpeechRequest", "SimpleSpeechRequest"):
        described = schema["components"]["schemas"][name]
        assert described["examples"]
        assert all("description" in field for field in described["properties"].values())
