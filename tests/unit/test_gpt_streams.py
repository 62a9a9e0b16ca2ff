"""The `gpt` member as `chattts_stream` uses it: the tiny export behind a stand-in of Triton."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pb_utils import WAIT_S, PbUtils, Request, Sender, TritonError, model_args

from chattts_triton.serving.edge import STREAM_PARAMETER, TritonEdge
from chattts_triton.serving.gpt import GptModel
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.serving.series import Metrics
from chattts_triton.tensors import GPT, PROMPT

OUTPUTS = tuple(spec.name for spec in GPT.outputs)
CAPS = (70, 40)  # of the two segments
# How long an idle engine waits for company before it takes a step; also when it is warmed up.
HOLD_US = 2_000_000


class Gpt:
    """The model, and requests to it."""

    def __init__(self, repository: Path, **parameters: object) -> None:
        triton = PbUtils()
        args = model_args(repository / "gpt", **parameters)
        self.model = GptModel(TritonEdge(triton, GPT), args, Metrics(triton, args.ensemble))

    def send(self, inputs: dict[str, np.ndarray], **request: Any) -> Sender:
        asked = Request(inputs, request.pop("parameters", {}), OUTPUTS, **request)
        self.model.accept(asked)
        return asked.sender

    def open(self, name: str, min_codes: int, prompt: Any = None, **request: Any) -> Sender:
        inputs = (prompt or a_prompt()) | a_read(name, 0, 0, min_codes)
        return self.send(inputs, **request)

    def open_long(self, name: str, **request: Any) -> Sender:
        """A stream whose first read stays open for a long time."""
        return self.open(name, 2000, a_long_prompt(), **request)

    def read(self, name: str, segment: int, cursor: int, min_codes: int) -> Sender:
        return self.send(a_read(name, segment, cursor, min_codes))

    def close(self, name: str) -> Sender:
        return self.read(name, 0, 0, 0)


Start = Callable[..., Gpt]


@pytest.fixture(scope="module")
def gpt(tiny_repositories: dict[str, Path]) -> Iterator[Gpt]:
    """One that goes on at once."""
    model = Gpt(tiny_repositories["fp32"])
    yield model
    model.model.close()


@pytest.fixture
def start(tiny_repositories: dict[str, Path]) -> Iterator[Start]:
    started: list[Gpt] = []

    def start(**parameters: object) -> Gpt:
        started.append(Gpt(tiny_repositories["fp32"], **parameters))
        return started[-1]

    yield start
    for model in started:
        model.model.close()


@pytest.fixture(scope="module")
def held_gpt(tiny_repositories: dict[str, Path]) -> Iterator[Gpt]:
    model = Gpt(tiny_repositories["fp32"], max_queue_delay_us=HOLD_US)
    yield model
    model.model.close()


@pytest.fixture
def held(held_gpt: Gpt) -> Iterator[Gpt]:
    """One that takes no step for a long time, so that what is open stays open."""
    yield held_gpt
    held_gpt.close("s")


def a_prompt(caps: tuple[int, ...] = CAPS, num_texts: int = 1) -> dict[str, np.ndarray]:
    """Texts of one segment for each cap, all alike but for their seeds."""
    row = {
        "TEXT_IDS": np.tile(np.arange(100, 112, dtype=np.int32), len(caps)),
        "NUM_TEXT_IDS": np.full(len(caps), 12, np.int32),
        "SPEAKER_EMBEDDING": np.linspace(-0.1, 0.1, 768, dtype=np.float32),
        "SEED": np.arange(3, 3 + len(caps), dtype=np.int64),
        "TEMPERATURE": np.array([0.3], np.float32),
        "TOP_P": np.array([0.7], np.float32),
        "TOP_K": np.array([20], np.int32),
        "REPETITION_PENALTY": np.array([1.05], np.float32),
        "MAX_NEW_CODES": np.array(caps, np.int32),
    }
    assert {spec.name for spec in PROMPT} == set(row)
    return {name: np.stack([values] * num_texts) for name, values in row.items()}


def a_long_prompt() -> dict[str, np.ndarray]:
    """One that the tiny model goes on with to its cap."""
    sampling = {"TEMPERATURE": 0.01, "REPETITION_PENALTY": 1.0, "TOP_K": 3, "SEED": 1}
    prompt = a_prompt(caps=(2000,))
    return prompt | {name: np.full_like(prompt[name], value) for name, value in sampling.items()}


def a_read(name: str, segment: int, cursor: int, min_codes: int) -> dict[str, np.ndarray]:
    numbers = {"SEGMENT": segment, "CURSOR": cursor, "MIN_CODES": min_codes}
    return {
        "STREAM_ID": np.array([[name.encode()]], dtype=object),
        **{key: np.array([[value]], np.int32) for key, value in numbers.items()},
    }


def only(sender: Sender) -> dict[str, np.ndarray]:
    (chunk,) = sender.chunks()
    assert set(chunk) == set(OUTPUTS)
    return chunk


def assert_refused(sender: Sender, code: str, text: str) -> None:
    assert len(sender.wait()) == 1
    assert sender.error().code == code
    assert text in sender.error().message()


def test_a_text_that_is_read_in_parts_is_that_of_a_call_that_waits_for_all(gpt: Gpt):
    whole = only(gpt.send(a_prompt()))
    lengths = whole["NUM_CODES"][0].tolist()
    hiddens, codes = [], []

    for segment in range(len(CAPS)):
        cursor, reason, num_reads = 0, b"", 0
        while not reason:
            is_first = segment == cursor == num_reads == 0
            part = only(gpt.open("s", 9) if is_first else gpt.read("s", segment, cursor, 9))
            num_codes = part["NUM_CODES"].item()
            hiddens.append(part["HIDDENS"][0, :num_codes])
            codes.append(part["CODES"][0, :num_codes])
            reason = part["FINISH_REASON"].item()
            assert reason or num_codes >= 9
            cursor += num_codes
            num_reads += 1
        assert cursor == lengths[segment]

    assert np.array_equal(np.concatenate(hiddens), whole["HIDDENS"][0])
    assert np.array_equal(np.concatenate(codes), whole["CODES"][0])
    # Its last part has left, so it is open no longer.
    assert_refused(gpt.read("s", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def test_no_segment_begins_before_the_one_in_front_of_it_is_read(gpt: Gpt):
    only(gpt.open("s1", 2, a_prompt(caps=(200, 5, 5))))
    for cursor in (2, 4, 6):
        only(gpt.read("s1", 0, cursor, 2))

    refused = gpt.read("s1", 2, 0, 1)
    only(gpt.read("s1", 1, 0, 1))
    accepted = gpt.read("s1", 2, 0, 1)

    assert_refused(refused, TritonError.INVALID_ARG, "SEGMENT: got 2, wanted 0 to 1 at this time")
    only(accepted)
    only(gpt.close("s1"))


def test_a_name_can_be_used_again_once_its_stream_has_been_read(gpt: Gpt):
    prompt = a_prompt(caps=(20,))

    for _ in range(2):
        part = only(gpt.open("again", 2048, prompt))
        assert part["FINISH_REASON"].item() in (b"stop", b"length")


def test_the_first_part_says_how_fast_the_engine_is_and_keeps_the_record(gpt: Gpt):
    record = {"RECORD": to_tensor(RequestRecord.begin("r-1"), 1)}

    part = only(gpt.open("s2", 2048, a_prompt(caps=(20,)) | record))

    kept = RequestRecord.from_tensor(part["RECORD"])
    assert kept is not None
    assert (kept.id, kept.steps) == ("r-1", part["NUM_CODES"].item())
    assert kept.outcome == ""  # it ends where the stream ends
    assert part["STEP_SECONDS"].item() > 0


@pytest.mark.parametrize("missing", [spec.name for spec in PROMPT if spec.name != "TEXT_IDS"])
def test_a_prompt_without_one_of_its_tensors_is_refused_by_name(gpt: Gpt, missing: str):
    prompt = a_prompt()
    del prompt[missing]

    for sender in (gpt.send(prompt), gpt.open("s3", 1, prompt)):
        assert_refused(sender, TritonError.INVALID_ARG, f"gpt: {missing}: missing")
    assert_refused(gpt.read("s3", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def test_a_request_of_neither_a_text_nor_a_stream_is_refused(gpt: Gpt):
    assert_refused(gpt.send({}), TritonError.INVALID_ARG, "gpt: TEXT_IDS: missing")


def test_a_stream_is_of_one_text(gpt: Gpt):
    sender = gpt.open("s4", 1, a_prompt(num_texts=2))

    assert_refused(sender, TritonError.INVALID_ARG, "TEXT_IDS: got 2, wanted one text in a stream")
    assert_refused(gpt.read("s4", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def test_reads_of_what_is_not_there_are_refused(gpt: Gpt):
    read = gpt.read("nobody's", 0, 0, 1)

    assert_refused(read, TritonError.INVALID_ARG, 'STREAM_ID: got "nobody\'s", wanted that of')


def test_closing_what_is_not_open_is_no_error(gpt: Gpt):
    assert only(gpt.close("nobody's"))["NUM_CODES"].item() == 0


def test_a_place_in_the_queue_that_does_not_exist_is_refused_for_streams_as_well(gpt: Gpt):
    parameters = {STREAM_PARAMETER: '{"queue_priority": 3}'}

    sender = gpt.open("s5", 1, parameters=parameters)

    assert_refused(sender, TritonError.INVALID_ARG, "invalid_request: gpt: queue_priority: got 3")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_waiting_request_is_served_by_its_place_in_the_queue(start: Start, is_stream: bool):
    """One slot, which is taken until all have come."""
    gpt = start(max_num_seqs=1)
    gpt.open_long("first")
    record = {"RECORD": to_tensor(RequestRecord.begin("r-1"), 1)}
    senders = {}

    for priority in (1, 2, 0):
        callers = {"queue_priority": priority}
        parameters = {STREAM_PARAMETER: json.dumps(callers)} if is_stream else callers
        inputs = a_prompt(caps=(5,)) | record
        inputs |= a_read(f"s{priority}", 0, 0, 5) if is_stream else {}
        senders[priority] = gpt.send(inputs, parameters=parameters)

    gpt.close("first")
    waited_ms = {}
    for priority, sender in senders.items():
        noted = RequestRecord.from_tensor(only(sender)["RECORD"])
        assert noted is not None
        waited_ms[priority] = noted.queue_ms
    assert sorted(waited_ms, key=waited_ms.get) == [0, 1, 2]


def test_a_second_read_is_refused_while_one_is_open_and_does_not_disturb_it(held: Gpt):
    first = held.open_long("s")

    assert_refused(held.read("s", 0, 0, 1), TritonError.INVALID_ARG, "another read of this stream")

    assert not first.has_ended.is_set()
    held.close("s")
    assert_refused(first, TritonError.CANCELLED, "gpt: cancelled after ")


def test_a_name_that_is_open_cannot_be_opened_and_the_stream_goes_on(held: Gpt):
    first = held.open_long("s")

    assert_refused(held.open_long("s"), TritonError.INVALID_ARG, "wanted one that is not open yet")

    assert not first.has_ended.is_set()
    assert_refused(held.read("s", 0, 0, 1), TritonError.INVALID_ARG, "another read of this stream")


def test_a_closed_stream_answers_its_open_read_and_is_no_longer_there(held: Gpt):
    first = held.open_long("s")

    assert only(held.close("s"))["NUM_CODES"].item() == 0

    assert_refused(first, TritonError.CANCELLED, "gpt: cancelled after ")
    assert_refused(held.read("s", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def test_closing_one_stream_frees_its_place_for_the_next(start: Start):
    held = start(max_queue_delay_us=HOLD_US, max_num_seqs=1, max_waiting=1)
    prompt = a_prompt(caps=(5,))
    opened = held.open_long("s")
    held.open("t", 1, prompt)
    refused = held.open("u", 1, prompt)
    assert_refused(refused, TritonError.UNAVAILABLE, "gpt: ")
    assert_refused(held.read("u", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")

    held.close("s")
    opened.wait()

    assert only(held.open("u", 1, prompt))["NUM_CODES"].item() > 0


def test_the_deadline_of_a_stream_answers_its_open_read(held: Gpt):
    sender = held.open_long("s", timeout_us=5000)

    assert_refused(sender, TritonError.CANCELLED, "gpt: deadline of 5 ms exceeded after ")
    assert_refused(held.read("s", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def test_a_request_without_a_timeout_has_the_operators(start: Start):
    gpt = start(default_timeout_ms=1)

    for sender in (gpt.open("s", 2048), gpt.send(a_prompt())):
        assert_refused(sender, TritonError.CANCELLED, "gpt: deadline of 1 ms exceeded after ")


def test_an_error_for_a_stream_says_of_which_type_it_is(held: Gpt):
    sender = held.open_long("s", timeout_us=5000, parameters={STREAM_PARAMETER: "{}"})

    assert_refused(sender, TritonError.CANCELLED, "deadline_exceeded: gpt: deadline of 5 ms")


def test_what_is_open_when_the_model_ends_is_answered(tiny_repositories: dict[str, Path]):
    held = Gpt(tiny_repositories["fp32"], max_queue_delay_us=HOLD_US)
    open_read, waiting = held.open_long("s"), held.send(a_prompt())

    held.model.close()

    for sender in (open_read, waiting):
        assert sender.has_ended.is_set()
        assert_refused(sender, TritonError.CANCELLED, "the server is stopping")


def test_a_stream_that_nobody_reads_is_given_up_and_frees_its_place(start: Start):
    held = start(
        max_queue_delay_us=HOLD_US, max_num_seqs=1, max_waiting=0, stream_idle_timeout_ms=1
    )
    only(held.open("s", 0, a_long_prompt()))
    assert_refused(held.open_long("t"), TritonError.UNAVAILABLE, "gpt: ")

    until_s = time.monotonic() + WAIT_S
    while (waiting := held.open_long("t")).has_ended.is_set():
        assert time.monotonic() < until_s

    assert not waiting.has_ended.is_set()  # it waits, so it is not given up in its turn
    assert_refused(held.read("s", 0, 0, 1), TritonError.INVALID_ARG, "that of a stream which is")


def with_refinement(prompt: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return prompt | {
        "REFINE_IDS": prompt["TEXT_IDS"],
        "NUM_REFINE_IDS": prompt["NUM_TEXT_IDS"],
        "SEGMENT_TEXT": np.array([[b"hello"] * prompt["NUM_TEXT_IDS"].shape[1]], dtype=object),
    }


def test_a_text_is_refined_before_its_first_codes_are_read(gpt: Gpt):
    """What random weights make of a text is not the text, so it is spoken as it was sent."""
    prompt = a_prompt(caps=(20,))
    spoken = only(gpt.send(prompt))

    part = only(gpt.open("s6", 2048, with_refinement(prompt)))

    assert part["WARNINGS"].item() == b'["refine_refused"]'
    assert np.array_equal(part["HIDDENS"], spoken["HIDDENS"])


def test_a_stream_that_is_closed_while_it_is_refined_answers_its_open_read(held: Gpt):
    first = held.open("s", 1, with_refinement(a_prompt()))

    held.close("s")

    assert_refused(first, TritonError.CANCELLED, "gpt: cancelled after ")
