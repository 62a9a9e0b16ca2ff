"""Each error has its status and its code, in OpenAI's shape, and costs nothing."""

from __future__ import annotations

import http.client
import re
import socket
from pathlib import Path

import grpc
import pytest
from fake_streams import silence
from fake_triton import FakeTriton
from gateway_harness import RunningGateway, running_gateway

from chattts_triton.gateway.admission import Admitted, RequestFacts
from chattts_triton.gateway.errors import ApiError

SPEECH = "/v1/audio/speech"
DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway.md"
QUEUE_FULL = "in ensemble 'chattts', gpt: the waiting queue is full"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_field", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": 5}, "invalid_value", "input"),
        ({"input": "a", "speed": 0.2}, "invalid_value", "speed"),
        ({"input": "a", "speed": "1"}, "invalid_value", "speed"),
        ({"input": "a", "seed": -2}, "invalid_value", "seed"),
        ({"input": "a", "seed": 2**63}, "invalid_value", "seed"),
        ({"input": "a", "seed": True}, "invalid_value", "seed"),
        ({"input": "a", "top_p": 1.5}, "invalid_value", "top_p"),
        ({"input": "a", "max_new_tokens": 0}, "invalid_value", "max_new_tokens"),
        ({"input": "a", "response_format": "aac"}, "invalid_value", "response_format"),
        ({"input": "a", "stream_format": "x"}, "invalid_value", "stream_format"),
        ({"input": "a", "mode": "fast"}, "invalid_value", "mode"),
        ({"input": "a", "instructions": "x"}, "unknown_field", "instructions"),
        ({"input": "a" * 101}, "text_too_long", "input"),
        (b'{"input": "a", "temperature": NaN}', "invalid_value", "temperature"),
        (b'{"input": "\\ud800"}', "invalid_value", "input"),
        (b'{"input": ', "invalid_json", None),
        (b"\xff", "invalid_json", None),
        (b"[]", "invalid_value", None),
        (b"", "missing_field", None),
    ],
)
def test_a_wrong_body_is_400_and_never_reaches_triton(
    triton: FakeTriton, body: object, code: str, param: str | None
):
    with running_gateway(triton.url, max_characters=100) as gateway:
        answer = gateway.call("POST", SPEECH, body)

    assert answer.status == 400, answer.body
    assert (answer.error["code"], answer.error["param"]) == (code, param)
    assert answer.error["type"] == "invalid_request_error"
    assert triton.requests == []


def test_a_message_names_the_field_what_came_and_what_is_wanted(gateway: RunningGateway):
    message = gateway.speak(speed=9).error["message"]

    assert message == "speed: got 9, wanted less than or equal to 4"


def test_a_long_value_is_cut_in_the_message(gateway: RunningGateway):
    answer = gateway.speak(voice="v" * 20_000)

    assert answer.error["param"] == "voice"
    assert len(answer.error["message"]) < 200


def test_an_unknown_model_is_404(triton: FakeTriton, gateway: RunningGateway):
    answer = gateway.speak(model="whisper-1")

    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert triton.requests == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/nothing", 404, "not_found"), ("GET", SPEECH, 405, "method_not_allowed")],
)
def test_a_path_or_method_that_is_not_there_has_the_same_shape(
    gateway: RunningGateway, method: str, path: str, status: int, code: str
):
    answer = gateway.call(method, path)

    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_body_beyond_the_limit_is_413(triton: FakeTriton, is_declared: bool):
    with running_gateway(triton.url, max_body_bytes=1_000) as gateway:
        connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=20)
        body = b'{"input": "' + b"a" * 2_000 + b'"}'
        connection.request(
            "POST", SPEECH, body if is_declared else iter([body]), encode_chunked=not is_declared
        )
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()

    assert response.status == 413
    assert '"code":"body_too_large"' in text
    assert triton.requests == []


def test_a_body_that_does_not_come_is_408(triton: FakeTriton):
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
    with (
        running_gateway(triton.url, read_timeout_s=0.2) as gateway,
        socket.create_connection((gateway.host, gateway.port), timeout=20) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(head.encode())
        answer = reader.read()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in answer


def test_a_head_that_does_not_come_ends_the_connection(triton: FakeTriton):
    with (
        running_gateway(triton.url, read_timeout_s=0.2) as gateway,
        socket.create_connection((gateway.host, gateway.port), timeout=20) as connection,
    ):
        connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost")

        assert connection.recv(1) == b""


def test_a_connection_is_used_again_after_an_error(gateway: RunningGateway):
    connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=20)
    statuses = []
    for path in ("/nothing", "/healthz"):
        connection.request("GET", path)
        with connection.getresponse() as response:
            response.read()
            statuses.append(response.status)
    connection.close()

    assert statuses == [404, 200]


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        ((grpc.StatusCode.INVALID_ARGUMENT, "preprocess: VOICE: got 'x', wanted y"), 400, None),
        ((grpc.StatusCode.UNAVAILABLE, QUEUE_FULL), 503, "overloaded"),
        ((grpc.StatusCode.UNAVAILABLE, "server is stopping"), 503, "upstream_unavailable"),
        ((grpc.StatusCode.CANCELLED, "gpt: deadline of 5 ms exceeded"), 504, "deadline_exceeded"),
        ((grpc.StatusCode.CANCELLED, "cancelled"), 503, "cancelled"),
        ((grpc.StatusCode.INTERNAL, "gpt: it broke"), 500, "generation_failed"),
    ],
)
@pytest.mark.parametrize("stream_format", [None, "audio", "sse"])
def test_an_error_of_triton_before_the_first_chunk_has_its_status(
    triton: FakeTriton,
    gateway: RunningGateway,
    refusal: tuple[grpc.StatusCode, str],
    status: int,
    code: str | None,
    stream_format: str | None,
):
    triton.stream_steps = lambda inputs: [refusal]

    answer = gateway.speak(stream_format=stream_format)

    assert (answer.status, answer.error["code"]) == (status, code or "invalid_request")
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_an_error_of_triton_names_the_field_as_the_caller_knows_it(
    triton: FakeTriton, gateway: RunningGateway
):
    steps = [(grpc.StatusCode.INVALID_ARGUMENT, "preprocess: TEXT: got 0 words, wanted some")]
    triton.stream_steps = lambda inputs: steps

    assert gateway.speak().error["param"] == "input"


def test_a_file_that_breaks_off_is_an_error_and_no_file(
    triton: FakeTriton, gateway: RunningGateway
):
    triton.stream_steps = lambda inputs: [silence(0), (grpc.StatusCode.INTERNAL, "gpt: it broke")]

    answer = gateway.speak(response_format="wav")

    assert (answer.status, answer.error["code"]) == (500, "generation_failed")


@pytest.mark.parametrize("response_format", ["mp3", "opus", "flac", "wav", "pcm"])
def test_a_stream_that_breaks_off_has_no_end(
    triton: FakeTriton, gateway: RunningGateway, response_format: str
):
    triton.stream_steps = lambda inputs: [silence(0), (grpc.StatusCode.INTERNAL, "gpt: it broke")]

    with pytest.raises(http.client.IncompleteRead):
        gateway.speak(response_format=response_format, stream_format="audio")

    assert gateway.metric("chattts_gateway_broken_streams_total") == 1
    assert gateway.metric("chattts_gateway_upstream_errors_total", type="generation") == 1


def test_events_that_break_off_say_why_and_have_no_end(triton: FakeTriton, gateway: RunningGateway):
    triton.stream_steps = lambda inputs: [silence(0), (grpc.StatusCode.INTERNAL, "gpt: it broke")]

    with pytest.raises(http.client.IncompleteRead) as caught:
        gateway.speak(stream_format="sse", response_format="pcm")

    events = caught.value.partial.decode()
    assert '"code": "generation_failed"' in events
    assert "speech.audio.done" not in events


class Doorkeeper:
    """Refuses what it is told to, masks a word, and counts who is in."""

    def __init__(self) -> None:
        self.facts: list[RequestFacts] = []
        self.num_inside = 0
        self.refusal: ApiError | None = None

    async def admit(self, facts: RequestFacts) -> Admitted:
        self.facts.append(facts)
        if self.refusal is not None:
            raise self.refusal
        self.num_inside += 1
        text = None if facts.text is None else facts.text.replace("damn", "****")
        return Admitted(text=text, headers={"X-Limit": "7"}, release=self._release)

    def _release(self) -> None:
        self.num_inside -= 1


def test_a_refusal_of_admission_is_the_answer_and_costs_nothing(triton: FakeTriton):
    doorkeeper = Doorkeeper()
    doorkeeper.refusal = ApiError(429, "rate_limited", "too many requests", {"Retry-After": "9"})
    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        answers = [gateway.speak(), gateway.get("/v1/models"), gateway.get("/v1/audio/voices")]
        refused = gateway.metric("chattts_gateway_refusals_total", code="rate_limited")

    assert [answer.status for answer in answers] == [429] * 3
    assert answers[0].headers["Retry-After"] == "9"
    assert answers[0].error["type"] == "rate_limit_error"
    assert triton.requests == []
    assert refused == 3


def test_admission_is_told_of_the_request_and_says_what_is_spoken(triton: FakeTriton):
    doorkeeper = Doorkeeper()
    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        answer = gateway.call(
            "POST", "/api/tts", {"text": "damn it"}, {"Authorization": "Bearer k"}
        )

    (facts,) = doorkeeper.facts
    assert (facts.method, facts.path) == ("POST", "/api/tts")
    assert (facts.text, facts.num_characters) == ("damn it", 7)
    assert (facts.headers["authorization"], facts.client_address) == ("Bearer k", "127.0.0.1")
    assert answer.headers["X-Limit"] == "7"
    assert triton.last_inputs["TEXT"][2] == [b"**** it"]


@pytest.mark.parametrize("stream_format", [None, "audio", "sse"])
@pytest.mark.parametrize("ends_well", [True, False])
def test_whoever_was_let_in_is_released_once_however_it_ends(
    triton: FakeTriton, stream_format: str | None, ends_well: bool
):
    doorkeeper = Doorkeeper()
    if not ends_well:
        steps = [silence(0), (grpc.StatusCode.INTERNAL, "gpt: it broke")]
        triton.stream_steps = lambda inputs: steps
    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        try:
            gateway.speak(stream_format=stream_format)
        except http.client.IncompleteRead:
            assert not ends_well

    assert len(doorkeeper.facts) == 1
    assert doorkeeper.num_inside == 0


def test_every_code_is_documented():
    package = Path(__file__).parents[2] / "chattts_triton" / "gateway"
    source = "".join(path.read_text(encoding="utf-8") for path in package.glob("*.py"))
    made = set(re.findall(r'ApiError\(\s*\d{3},\s*"(\w+)"', source))
    made |= set(re.findall(r'return "(\w+)", f"', source)) | {"not_found", "method_not_allowed"}

    section = DOCUMENT.read_text(encoding="utf-8").split("\n## Errors\n")[1].split("\n## ")[0]

    assert set(re.findall(r"(?m)^\| `(\w+)` \|", section)) == made
