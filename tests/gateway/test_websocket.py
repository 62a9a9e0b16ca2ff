"""`WS /ws/tts` in front of a small gRPC server: its messages, limits and errors."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_streams import chunk_of, silence
from fake_triton import WAIT_S, FakeTriton, fake_pcm16, fake_samples, read_inputs
from gateway_harness import RunningGateway, running_gateway, until
from test_gateway_errors import Doorkeeper
from websocket_calls import opened, speaking_to_nobody
from websockets.exceptions import ConnectionClosed, InvalidStatus

from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.websocket import MAX_UTTERANCES

LARGE_SAMPLES = 500_000


def texts_of(triton: FakeTriton) -> list[str]:
    return [read_inputs(request)["TEXT"][2][0].decode() for request in triton.requests]


def seeds_of(triton: FakeTriton) -> list[int]:
    inputs = [read_inputs(request) for request in triton.requests]
    return [int(each["SEED"][2][0]) if "SEED" in each else -1 for each in inputs]


def test_utterances_of_one_connection_are_spoken_one_after_another(gateway: RunningGateway):
    with opened(gateway) as socket:
        for name in ("first", "second"):
            socket.tell("speak", name, text=f"text {name}", seed=3, mode="quality")
        outcomes = [socket.outcome(), socket.outcome()]

    for name, outcome in zip(("first", "second"), outcomes, strict=True):
        wanted = fake_pcm16(fake_samples(f"text {name}", 3))
        np.testing.assert_array_equal(outcome.samples, wanted)
        started = {"type": "started", "id": name, "seed": 3, "mode": "quality"}
        assert outcome.started == started | {"sample_rate": 24_000}
        assert outcome.end["type"] == "finished"
        assert (outcome.end["id"], outcome.end["seed"]) == (name, 3)
        assert outcome.end["duration_s"] == pytest.approx(len(wanted) / 24_000, abs=1e-5)


def test_text_in_pieces_is_spoken_by_sentences_in_the_voice_of_the_first(
    triton: FakeTriton, gateway: RunningGateway
):
    with opened(gateway) as socket:
        socket.tell("begin", speed=2.0)
        for piece in ("How ar", "e you? I am", " fine.", " Bye"):
            socket.tell("text", text=piece)
        socket.tell("end")
        outcome = socket.outcome()

    assert outcome.end["type"] == "finished"
    assert texts_of(triton) == ["How are you?", "I am fine.", "Bye"]
    seed = outcome.started["seed"]
    assert seeds_of(triton) == [-1, seed, seed]
    wanted = [fake_pcm16(fake_samples(text, seed)) for text in texts_of(triton)]
    np.testing.assert_array_equal(outcome.samples, np.concatenate(wanted))


def test_the_first_sentence_is_spoken_before_the_text_is_whole(gateway: RunningGateway):
    with opened(gateway) as socket:
        socket.tell("begin")
        socket.tell("text", text="你好。还有")
        assert socket.next()["type"] == "started"
        assert isinstance(socket.next(), bytes)
        socket.tell("end")

        assert socket.outcome().end["type"] == "finished"


def test_cut_audio_says_so(triton: FakeTriton, gateway: RunningGateway):
    triton.stream_steps = lambda inputs: [silence(0, reason="length")]
    with opened(gateway) as socket:
        assert socket.speak("a").end["finish_reason"] == "length"


def test_a_cancelled_utterance_is_cancelled_at_triton_and_the_next_one_spoken(
    triton: FakeTriton, gateway: RunningGateway
):
    triton.stream_steps = lambda inputs: [silence(0), threading.Event()]
    with opened(gateway) as socket:
        socket.tell("speak", text="long")
        assert socket.next()["type"] == "started"
        assert isinstance(socket.next(), bytes)
        socket.tell("cancel")
        assert socket.outcome().end == {"type": "cancelled", "id": "a"}
        assert triton.stream_cancelled.wait(WAIT_S)
        triton.stream_steps = lambda inputs: [silence(0, reason="stop")]

        assert socket.speak("short", "b").end["type"] == "finished"


def test_an_utterance_that_waits_is_cancelled_at_once(triton: FakeTriton, gateway: RunningGateway):
    go_on = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), go_on, silence(1, reason="stop")]
    with opened(gateway) as socket:
        socket.tell("speak", "a", text="first")
        socket.tell("speak", "b", text="second")
        assert socket.next()["type"] == "started"
        assert isinstance(socket.next(), bytes)
        socket.tell("cancel", "b")
        assert socket.next() == {"type": "cancelled", "id": "b"}
        go_on.set()
        assert isinstance(socket.next(), bytes)

        assert socket.next()["type"] == "finished"
    assert texts_of(triton) == ["first"]


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        (b"\0", "invalid_json", None),
        ("{}", "invalid_value", "type"),
        ('{"type": ["speak"]}', "invalid_value", "type"),
        ('{"type": "shout", "id": "x"}', "invalid_value", "type"),
        ('{"type": "speak", "text": "a"}', "missing_field", "id"),
        ('{"type": "speak", "id": "", "text": "a"}', "invalid_value", "id"),
        ('{"type": "speak", "id": "x", "text": ""}', "invalid_value", "text"),
        ('{"type": "speak", "id": "x", "text": 5}', "invalid_value", "text"),
        ('{"type": "speak", "id": "x", "text": "\\ud800"}', "invalid_value", "text"),
        ('{"type": "speak", "id": "x", "text": "a", "speed": 9}', "invalid_value", "speed"),
        ('{"type": "speak", "id": "x", "text": "a", "loud": 1}', "unknown_field", "loud"),
        ('{"type": "speak", "id": "x", "text": "a", "model": "gpt"}', "model_not_found", "model"),
        ('{"type": "text", "id": "nobody", "text": "a"}', "invalid_value", "id"),
        ('{"type": "end", "id": "nobody"}', "invalid_value", "id"),
        ('{"type": "cancel", "id": "nobody"}', "invalid_value", "id"),
    ],
)
def test_a_wrong_message_is_an_error_and_the_connection_goes_on(
    triton: FakeTriton, gateway: RunningGateway, message: str | bytes, code: str, param: str | None
):
    with opened(gateway) as socket:
        socket.connection.send(message)
        error = socket.error()
        assert triton.requests == []

        assert socket.speak("good", "g").end["type"] == "finished"

    assert (error["error"]["code"], error["error"]["param"]) == (code, param)
    known = json.loads(message).get("id") if '"id": "x"' in str(message) else error["id"]
    assert error["id"] == known


def test_an_id_that_is_open_is_refused(triton: FakeTriton, gateway: RunningGateway):
    triton.stream_steps = lambda inputs: [threading.Event()]
    with opened(gateway) as socket:
        socket.tell("speak", text="first")
        socket.tell("speak", text="second")
        error = socket.error()

    assert error["error"]["message"] == "id: got 'a', wanted one that no other utterance has"


def test_a_text_that_is_whole_takes_no_more(triton: FakeTriton, gateway: RunningGateway):
    triton.stream_steps = lambda inputs: [threading.Event()]
    with opened(gateway) as socket:
        socket.tell("speak", text="first")
        for kind, facts in (("text", {"text": "more"}), ("end", {})):
            socket.tell(kind, **facts)
            wanted = "id: got 'a', wanted an utterance whose text is not whole"
            assert socket.error()["error"]["message"] == wanted


@pytest.mark.parametrize("in_pieces", [True, False])
def test_a_text_that_is_too_long_is_refused(triton: FakeTriton, in_pieces: bool):
    with running_gateway(triton.url, max_characters=10) as gateway, opened(gateway) as socket:
        if in_pieces:
            socket.tell("begin")
            socket.tell("text", text="abcdef")
            socket.tell("text", text="ghijkl")
        else:
            socket.tell("speak", text="abcdefghijkl")
        error = socket.error()

    assert (error["id"], error["error"]["code"]) == ("a", "text_too_long")
    assert error["error"]["message"] == "text: got 12 characters, wanted at most 10"
    assert triton.requests == []


@pytest.mark.parametrize("text", ["", "?! ...", "”"])
def test_a_text_in_pieces_without_words_is_refused(
    triton: FakeTriton, gateway: RunningGateway, text: str
):
    with opened(gateway) as socket:
        socket.tell("begin")
        if text:
            socket.tell("text", text=text)
        socket.tell("end")
        error = socket.error()

    assert (error["id"], error["error"]["param"]) == ("a", "text")
    assert triton.requests == []


def test_text_that_does_not_go_on_ends_the_utterance_and_not_the_connection(triton: FakeTriton):
    with running_gateway(triton.url, read_timeout_s=0.3) as gateway, opened(gateway) as socket:
        socket.tell("begin")
        assert socket.error()["error"]["code"] == "text_timeout"

        assert socket.speak("good", "b").end["type"] == "finished"


def test_more_utterances_than_may_wait_are_refused(triton: FakeTriton, gateway: RunningGateway):
    triton.stream_steps = lambda inputs: [threading.Event()]
    with opened(gateway) as socket:
        for index in range(MAX_UTTERANCES + 1):
            socket.tell("speak", str(index), text="a")
        error = socket.error()

    assert (error["id"], error["error"]["code"]) == (str(MAX_UTTERANCES), "too_many_utterances")


def test_an_error_of_triton_is_told_and_the_connection_goes_on(
    triton: FakeTriton, gateway: RunningGateway
):
    triton.stream_steps = lambda inputs: [silence(0), "overloaded: gpt: waiting queue is full"]
    with opened(gateway) as socket:
        outcome = socket.speak("a")
        assert len(outcome.parts) == 1
        assert outcome.end["type"] == "error"
        assert outcome.end["error"]["code"] == "overloaded"
        assert outcome.end["retry_after_s"] == 1
        triton.stream_steps = lambda inputs: [silence(0, reason="stop")]

        assert socket.speak("good", "b").end["type"] == "finished"


def test_each_utterance_is_admitted_masked_and_released(triton: FakeTriton):
    doorkeeper = Doorkeeper()
    with (
        running_gateway(triton.url, admission=doorkeeper) as gateway,
        opened(gateway, {"Authorization": "Bearer k"}) as socket,
    ):
        socket.speak("damn it")
        assert doorkeeper.num_inside == 0

    assert texts_of(triton) == ["**** it"]
    asked = [(facts.method, facts.text, facts.num_characters) for facts in doorkeeper.facts]
    assert asked == [("WEBSOCKET", None, 0), ("WEBSOCKET", "damn it", 7)]
    assert doorkeeper.facts[1].headers["authorization"] == "Bearer k"


def test_a_refused_utterance_is_an_error_with_its_wait(triton: FakeTriton):
    doorkeeper = Doorkeeper()
    with running_gateway(triton.url, admission=doorkeeper) as gateway, opened(gateway) as socket:
        doorkeeper.refusal = ApiError(429, "rate_limit_exceeded", "too fast", {"Retry-After": "9"})
        error = socket.speak("a").end
        doorkeeper.refusal = None

        assert socket.speak("b", "b").end["type"] == "finished"

    assert (error["error"]["code"], error["retry_after_s"]) == ("rate_limit_exceeded", 9)


def test_a_connection_that_is_not_let_in_gets_the_http_answer_of_its_error(triton: FakeTriton):
    doorkeeper = Doorkeeper()
    doorkeeper.refusal = ApiError(401, "invalid_api_key", "no such key")
    with (
        running_gateway(triton.url, admission=doorkeeper) as gateway,
        pytest.raises(InvalidStatus) as caught,
        opened(gateway),
    ):
        pass

    response = caught.value.response
    assert response.status_code == 401
    assert json.loads(response.body or b"")["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [("http://evil.example", False), ("https://page.example", True), (None, True)],
)
def test_pages_of_other_origins_are_let_in_where_cors_says_so(
    triton: FakeTriton, origin: str | None, is_let_in: bool
):
    headers = {} if origin is None else {"Origin": origin}
    with running_gateway(triton.url, cors_origins=("https://page.example",)) as gateway:
        own = {"Origin": gateway.url}
        with opened(gateway, own) as socket:
            assert socket.speak("a").end["type"] == "finished"
        if is_let_in:
            with opened(gateway, headers) as socket:
                assert socket.speak("a").end["type"] == "finished"
            return
        with pytest.raises(InvalidStatus) as caught, opened(gateway, headers):
            pass
    assert caught.value.response.status_code == 403


def test_a_client_that_goes_away_cancels_what_is_spoken(
    triton: FakeTriton, gateway: RunningGateway
):
    triton.stream_steps = lambda inputs: [silence(0), threading.Event()]
    with opened(gateway) as socket:
        socket.tell("speak", text="a")
        assert socket.next()["type"] == "started"

    assert triton.stream_cancelled.wait(WAIT_S)
    assert until(lambda: gateway.metric("chattts_gateway_websockets_open") == 0)
    assert gateway.metric("chattts_gateway_disconnects_total") == 1


def test_a_client_that_takes_nothing_is_dropped(triton: FakeTriton):
    chunk = np.zeros(LARGE_SAMPLES)
    triton.stream_steps = lambda inputs: (chunk_of(chunk, index) for index in range(1_000))
    with (
        running_gateway(triton.url, write_timeout_s=0.3) as gateway,
        speaking_to_nobody(gateway, "a"),
    ):
        assert triton.stream_cancelled.wait(WAIT_S)
        assert until(lambda: gateway.metric("chattts_gateway_broken_streams_total") == 1)


def test_a_message_that_is_too_large_ends_the_connection_with_1009(gateway: RunningGateway):
    with opened(gateway) as socket:
        socket.tell("speak", text="a" * (1 << 20))
        with pytest.raises(ConnectionClosed) as caught:
            socket.next()

    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_a_gateway_that_stops_says_so_to_its_clients(triton: FakeTriton):
    with running_gateway(triton.url) as gateway:
        socket_context = opened(gateway)
        socket = socket_context.__enter__()
    with pytest.raises(ConnectionClosed) as caught:
        socket.next()
    socket_context.__exit__(None, None, None)

    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012


def test_200_connections_that_come_and_go_leave_nothing_behind(triton: FakeTriton):
    draw = random.Random(11)
    plans = [(draw.random() < 0.5, draw.random() < 0.5) for _ in range(200)]
    doorkeeper = Doorkeeper()

    def come_and_go(gateway: RunningGateway, plan: tuple[bool, bool]) -> None:
        speaks, stays = plan
        with opened(gateway) as socket:
            if speaks:
                socket.tell("speak", text="a")
            if speaks and stays:
                assert socket.outcome().end["type"] == "finished"

    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda plan: come_and_go(gateway, plan), plans))

        assert until(lambda: gateway.metric("chattts_gateway_websockets_open") == 0)
        assert until(lambda: doorkeeper.num_inside == 0)
        assert gateway.get("/healthz").status == 200
