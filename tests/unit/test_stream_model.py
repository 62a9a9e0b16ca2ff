"""Many streams side by side: bounded in number, and none suffers from another's fate."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_members import Members, Spoken
from fake_pb_utils import FINAL, WAIT_S, Call, PbUtils, Request, Sender, TritonError, model_args

from chattts_triton.errors import InvalidRequestError
from chattts_triton.serving.edge import Tensors, TritonEdge
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.stream import StreamModel, take_caller_closes, take_mode
from chattts_triton.serving.text_stream import Mode
from chattts_triton.tensors import CHATTTS_STREAM

OUTPUTS = tuple(spec.name for spec in CHATTTS_STREAM.outputs)
SETTINGS = {
    "first_chunk_codes": 12,
    "first_quality_chunk_codes": 12,
    "chunk_growth_percent": 150,
    "max_chunk_codes": 96,
}
LONG = [Spoken(500)]
SHORT = [Spoken(30)]


class Lines(logging.Handler):
    """What is written down of each request that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.fields)  # type: ignore[attr-defined]

    def take(self) -> dict[str, Any]:
        return self._lines.get(timeout=WAIT_S)

    def is_empty(self) -> bool:
        return self._lines.empty()


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("chattts_triton.serving.request_log")
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(former)


class Server:
    """A stream model over such members."""

    def __init__(self, members: Members, set_name: str = "chattts", **settings: object) -> None:
        self.members = members
        self.triton = PbUtils(members.models(set_name))
        parameters = SETTINGS | settings
        if set_name != "chattts":
            parameters["ensemble"] = set_name
        args = model_args("chattts_stream", **parameters)
        edge = TritonEdge(self.triton, CHATTTS_STREAM)
        self.model = StreamModel(self.triton, edge, args, Metrics(self.triton, set_name))

    def ask(self, request_id: str = "r-1", timeout_us: int = 0, **parameters: object) -> Sender:
        """Send a text; what comes back comes over the sender."""
        inputs = {"TEXT": np.array([[b"hello"]], dtype=object)}
        request = Request(inputs, parameters, OUTPUTS, request_id, timeout_us)
        self.model.accept(request)
        return request.sender


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def serve(members: Members, set_name: str = "chattts", **settings: object) -> Server:
        started.append(Server(members, set_name, **settings))
        return started[-1]

    yield serve
    for server in started:
        server.model.close()
        assert "watcher" not in {thread.name for thread in threading.enumerate()}


def audio_of(sender: Sender) -> np.ndarray:
    return np.concatenate([chunk["AUDIO"][0] for chunk in sender.chunks()])


def test_a_text_is_answered_in_chunks_and_written_down_once(
    serve: Callable[..., Server], lines: Lines
):
    server = serve(Members(LONG))

    sender = server.ask("r-7", mode="quality")

    whole = server.members.whole_audio()
    assert audio_of(sender).shape == whole.shape
    line = lines.take()
    assert (line["id"], line["stream"], line["mode"]) == ("r-7", True, "quality")
    assert (line["outcome"], line["error"], line["steps"]) == ("ok", None, 500)
    assert line["audio_s"] == pytest.approx(len(whole) / 24_000, abs=1e-3)
    assert 0 < line["ttfa_ms"] < line["total_ms"]
    assert lines.is_empty()


def test_the_parameters_and_the_timeout_of_the_caller_reach_every_member(
    serve: Callable[..., Server],
):
    server = serve(Members(SHORT), set_name="second")

    server.ask(timeout_us=9_000_000, mode="low_latency", temperature=0.5).wait()

    assert {call.model for call in server.triton.calls} == {
        *("second_preprocess", "second_gpt", "second_vocos_decoder")
    }
    for call in server.triton.calls:
        assert call.parameters == {"stream_request": '{"temperature": 0.5}'}
        assert call.timeout_us == 9_000_000


def test_a_caller_without_a_timeout_has_the_operators(serve: Callable[..., Server]):
    server = serve(Members(SHORT), default_timeout_ms=7000)

    server.ask().wait()

    assert {call.timeout_us for call in server.triton.calls} == {7_000_000}


def test_one_stream_too_many_is_refused_at_once_and_when_one_ends_there_is_room(
    serve: Callable[..., Server], lines: Lines
):
    go_on = threading.Event()
    members = Members(SHORT)
    members.before["vocos_decoder"] = lambda: None if go_on.wait(WAIT_S) else "too late"
    server = serve(members, max_streams=2)
    senders = [server.ask("first"), server.ask("second")]

    refused = server.ask("third")

    assert refused.has_ended.is_set()  # before `accept` has returned
    assert len(refused.wait()) == 1
    assert refused.error().code == TritonError.UNAVAILABLE
    assert refused.error().message() == (
        "overloaded: chattts_stream: 2 streams are open (max_streams 2)"
    )
    line = lines.take()
    assert (line["id"], line["outcome"]) == ("third", "refused")

    go_on.set()
    for sender in senders:
        assert len(audio_of(sender)) > 0
    assert {lines.take()["id"], lines.take()["id"]} == {"first", "second"}
    until_s = time.monotonic() + WAIT_S
    while (fourth := server.ask("fourth")).wait()[-1].has_error():
        assert time.monotonic() < until_s
    assert len(audio_of(fourth)) > 0


def test_a_bug_in_one_stream_leaves_the_others_alone(serve: Callable[..., Server], lines: Lines):
    """Here one that is met while a member is called, as most would be."""
    server = serve(Members(LONG))
    decode = server.triton.models["vocos_decoder"]

    def stumble(call: Call) -> Tensors | str:
        if call.request_id == "bad":
            raise KeyError("AUDIO")
        return decode(call)

    server.triton.models["vocos_decoder"] = stumble

    senders = {name: server.ask(name) for name in ("good", "bad", "fine")}

    assert senders["bad"].error().code == TritonError.INTERNAL
    assert (
        senders["bad"].error().message() == "generation: chattts_stream: internal error: KeyError"
    )
    whole = server.members.whole_audio()
    for name in ("good", "fine"):
        assert audio_of(senders[name]).shape == whole.shape
    outcomes = {line["id"]: line["outcome"] for line in (lines.take() for _ in senders)}
    assert outcomes == {"good": "ok", "bad": "error", "fine": "ok"}
    assert server.members.num_closed == 1


@pytest.mark.parametrize(
    ("member", "text", "code", "outcome"),
    [
        ("preprocess", "invalid_request: preprocess: TEXT: missing", "INVALID_ARG", "invalid"),
        ("gpt", "overloaded: gpt: 256 sequences wait", "UNAVAILABLE", "refused"),
        ("gpt", "deadline_exceeded: gpt: deadline of 5 ms exceeded", "CANCELLED", "deadline"),
        ("vocos_decoder", "generation: vocos_decoder: not finite", "INTERNAL", "error"),
    ],
)
def test_a_members_error_is_the_streams_with_the_members_name(
    serve: Callable[..., Server],
    lines: Lines,
    member: str,
    text: str,
    code: str,
    outcome: str,
):
    members = Members(LONG)
    members.before[member] = lambda: text
    sender = serve(members).ask()

    assert len(sender.wait()) == 1
    assert sender.error().code == getattr(TritonError, code)
    assert sender.error().message() == text
    assert lines.take()["outcome"] == outcome


def test_the_error_is_that_of_the_stream_also_if_gpt_cannot_be_told_to_stop(
    serve: Callable[..., Server], lines: Lines
):
    server = serve(Members(LONG))
    gpt = server.triton.models["gpt"]

    def break_down(call: Call) -> Tensors | str:
        if call.inputs["CURSOR"].item() == 0 and "TEXT_IDS" not in call.inputs:
            return "Stub process 'gpt_0_0' is not healthy."
        return gpt(call) if "TEXT_IDS" in call.inputs else "deadline_exceeded: gpt: too late"

    server.triton.models["gpt"] = break_down

    sender = server.ask(mode="quality")

    assert sender.error().message() == "deadline_exceeded: gpt: too late"
    assert lines.take()["outcome"] == "deadline"


def test_a_failed_stream_is_generated_no_further(serve: Callable[..., Server], lines: Lines):
    members = Members(LONG)
    members.before["vocos_decoder"] = lambda: "generation: vocos_decoder: not finite"
    server = serve(members)

    server.ask().wait()
    lines.take()

    assert members.num_closed == 1


def test_a_stream_whose_time_is_over_ends_with_its_limit_and_is_generated_no_further(
    serve: Callable[..., Server], lines: Lines
):
    timeout_s = 0.2
    members = Members(LONG)

    def wait_until_over() -> None:
        over_s = time.monotonic() + timeout_s
        while time.monotonic() < over_s:
            pass

    members.before["vocos_decoder"] = wait_until_over
    server = serve(members)

    sender = server.ask(timeout_us=round(timeout_s * 1e6), mode="quality")

    assert sender.error().code == TritonError.CANCELLED
    assert sender.error().message() == (
        "deadline_exceeded: gpt: deadline of 200 ms exceeded after 64 steps"
    )
    line = lines.take()
    assert (line["outcome"], line["steps"]) == ("deadline", 64)
    assert members.num_closed == 1


def test_who_has_gone_is_cancelled_while_gpt_is_waited_for_and_the_others_are_not(
    serve: Callable[..., Server], lines: Lines
):
    """No read is answered from step 70 on but by a close."""
    members = Members(LONG, stalls_at=70)
    server = serve(members)
    gone, stays = server.ask("gone", mode="quality"), server.ask("stays", mode="quality")
    assert gone.has_sent.wait(WAIT_S)
    assert stays.has_sent.wait(WAIT_S)

    gone.is_gone = True

    assert gone.error().code == TritonError.CANCELLED
    assert gone.error().message() == "cancelled: chattts_stream: cancelled after 64 steps"
    line = lines.take()
    assert (line["id"], line["outcome"], line["steps"]) == ("gone", "cancelled", 64)
    assert line["ttfa_ms"] is not None
    assert not stays.has_ended.is_set()
    assert members.num_closed == 1

    stays.is_gone = True
    stays.wait()
    assert lines.take()["id"] == "stays"


def test_the_final_flag_waits_for_a_caller_who_closes(serve: Callable[..., Server], lines: Lines):
    """All that was generated has been sent, so the request has ended well by then."""
    members = Members(SHORT)
    server = serve(members)

    sender = server.ask(caller_closes=True)

    line = lines.take()
    assert (line["outcome"], line["steps"]) == ("ok", 30)
    assert not sender.has_ended.is_set()
    assert sender.sent[-1][0].arrays()["FINISH_REASON"].item() == b"stop"
    sender.is_gone = True

    assert audio_of(sender).shape == members.whole_audio().shape
    assert sender.sent[-1] == (None, FINAL)
    assert (members.num_closed, lines.is_empty()) == (0, True)


def test_the_final_flag_of_an_error_waits_for_a_caller_who_closes(
    serve: Callable[..., Server], lines: Lines
):
    members = Members(SHORT)
    members.before["gpt"] = lambda: "overloaded: gpt: 256 sequences wait"

    sender = serve(members).ask(caller_closes=True)

    assert lines.take()["outcome"] == "refused"
    assert [flags for _, flags in sender.sent] == [0]
    sender.is_gone = True
    sender.wait()
    assert sender.sent[-1] == (None, FINAL)


def test_the_final_flag_of_a_refusal_waits_for_a_caller_who_closes(
    serve: Callable[..., Server], lines: Lines
):
    server = serve(Members(LONG, stalls_at=70), max_streams="1")
    first = server.ask(mode="quality")

    sender = server.ask(caller_closes=True)

    assert lines.take()["outcome"] == "refused"
    assert [flags for _, flags in sender.sent] == [0]
    sender.is_gone = True
    sender.wait()
    assert sender.sent[-1] == (None, FINAL)
    first.is_gone = True
    first.wait()


def test_a_caller_who_does_not_close_has_the_final_flag_after_its_timeout(
    serve: Callable[..., Server], lines: Lines
):
    sender = serve(Members(SHORT)).ask(caller_closes=True, timeout_us=2_000_000)

    assert sender.wait()
    assert sender.sent[-1] == (None, FINAL)
    assert lines.take()["outcome"] == "ok"
    assert lines.is_empty()


def test_a_caller_who_closes_before_the_end_has_its_text_cancelled_and_is_told_so(
    serve: Callable[..., Server], lines: Lines
):
    members = Members(LONG, stalls_at=70)
    sender = serve(members).ask(caller_closes=True, mode="quality")
    assert sender.has_sent.wait(WAIT_S)

    sender.is_gone = True

    assert sender.error().code == TritonError.CANCELLED
    assert lines.take()["outcome"] == "cancelled"
    assert members.num_closed == 1


def test_who_closes_is_a_parameter_of_the_stream_alone():
    parameters = {"caller_closes": True, "seed": 1}

    assert take_caller_closes(parameters)
    assert parameters == {"seed": 1}
    assert not take_caller_closes(parameters)
    assert not take_caller_closes({"caller_closes": False})


@pytest.mark.parametrize("value", [0, 1, "true", None, 1.0, []])
def test_who_closes_is_true_or_false(value: object):
    with pytest.raises(InvalidRequestError, match=r"^caller_closes: got .*, wanted true or false$"):
        take_caller_closes({"caller_closes": value})


def test_whom_nobody_can_tell_of_is_served_and_so_are_the_others(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
):
    members = Members(LONG, stalls_at=70)
    server = serve(members)
    odd, gone = server.ask("odd", mode="quality"), server.ask("gone", mode="quality")
    assert odd.has_sent.wait(WAIT_S)
    assert gone.has_sent.wait(WAIT_S)
    asked = threading.Event()

    def fail() -> bool:
        asked.set()
        raise RuntimeError("no answer")

    monkeypatch.setattr(odd, "is_cancelled", fail)
    assert asked.wait(WAIT_S)
    gone.is_gone = True

    assert gone.error().code == TritonError.CANCELLED
    assert not odd.has_ended.is_set()
    monkeypatch.undo()
    odd.is_gone = True
    odd.wait()


def test_closing_ends_the_watcher_also_where_there_was_no_request(serve: Callable[..., Server]):
    """The fixture closes, and looks for the thread."""
    serve(Members(SHORT))
    assert "watcher" in {thread.name for thread in threading.enumerate()}


def test_many_streams_end_once_each_whoever_goes_and_whatever_fails(
    serve: Callable[..., Server], lines: Lines
):
    num_streams = 40
    random = np.random.default_rng(5)
    members = Members([Spoken(150, pause=300), Spoken(60)])
    server = serve(members, max_streams=num_streams)
    decode = server.triton.models["vocos_decoder"]

    def fail_some(call: Call) -> Tensors | str:
        if call.request_id.startswith("fails"):
            return "generation: vocos_decoder: not finite"
        return decode(call)

    server.triton.models["vocos_decoder"] = fail_some
    fates = [str(each) for each in random.choice(["stays", "fails", "goes"], num_streams)]

    senders = {f"{fate} {n}": server.ask(f"{fate} {n}") for n, fate in enumerate(fates)}
    for name, sender in senders.items():
        sender.is_gone = name.startswith("goes")

    outcomes = {line["id"]: line["outcome"] for line in (lines.take() for _ in senders)}
    for name, sender in senders.items():
        responses = sender.wait()
        if name.startswith("stays"):
            assert outcomes[name] == "ok"
            assert audio_of(sender).shape == members.whole_audio().shape
        elif name.startswith("fails"):
            assert outcomes[name] == "error"
        else:  # it may have been whole before anybody saw that its caller had gone
            assert outcomes[name] in ("cancelled", "ok")
            assert responses[-1].has_error() == (outcomes[name] == "cancelled")
    assert lines.is_empty()


def mode_of(parameters: dict[str, object], tensor: bytes | None = None) -> Mode:
    inputs = {} if tensor is None else {"MODE": np.array([[tensor]], dtype=object)}
    mode = take_mode(inputs, parameters)
    assert "mode" not in parameters
    assert inputs == {}
    return mode


def test_a_mode_is_a_tensor_or_a_parameter_and_else_chosen_by_the_server():
    assert mode_of({}) is Mode.AUTO
    assert mode_of({"mode": "", "seed": 1}) is Mode.AUTO
    assert mode_of({"mode": "quality"}) is Mode.QUALITY
    assert mode_of({}, b"low_latency") is Mode.LOW_LATENCY
    assert mode_of({}, b"") is Mode.AUTO
    assert mode_of({"mode": "quality"}, b"low_latency") is Mode.LOW_LATENCY


@pytest.mark.parametrize("name", ["fast", "QUALITY", "quality ", 5, True, 0, False, None, [], [1]])
def test_an_unknown_mode_is_refused_with_the_known_ones(name: object):
    with pytest.raises(InvalidRequestError) as caught:
        take_mode({}, {"mode": name})

    assert str(caught.value) == (f"MODE: got {name!r}, wanted quality or low_latency or auto")


def test_a_mode_that_is_no_text_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^MODE: "):
        take_mode({"MODE": np.array([[b"\xff"]], dtype=object)}, {})
