"""Between Triton's request objects and plain arrays, over a small stand-in of Triton's module."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chattts_triton.config import MAX_CALL_CODES
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
)
from chattts_triton.serving.edge import (
    STREAM_PARAMETER,
    TritonEdge,
    check_call_size,
    column,
    pad_rows,
    split_segments,
)
from chattts_triton.tensors import VOCOS_DECODER

AUDIO = np.zeros((1, 512), dtype=np.float32)
OUTPUTS = {
    "AUDIO": AUDIO,
    "AUDIO_LENGTH": np.array([[512]], dtype=np.int64),
    "PCM16": np.zeros((1, 512), dtype=np.int16),
}


class TritonError:
    """The codes of `pb_utils.TritonError` are its class attributes."""

    INVALID_ARG = "invalid-arg"
    UNAVAILABLE = "unavailable"
    CANCELLED = "cancelled"
    INTERNAL = "internal"

    def __init__(self, message: str, code: str) -> None:
        self.message = message
        self.code = code


@dataclass
class Tensor:
    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


@dataclass
class Request:
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    wanted: tuple[str, ...] = tuple(OUTPUTS)
    sent_parameters: str = ""

    def requested_output_names(self) -> list[str]:
        return list(self.wanted)

    def parameters(self) -> str:
        return self.sent_parameters


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return Tensor(name, request.inputs[name]) if name in request.inputs else None


PB_UTILS = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    TritonError=TritonError,
    Tensor=Tensor,
    InferenceResponse=InferenceResponse,
    get_input_tensor_by_name=get_input_tensor_by_name,
)


@pytest.fixture
def edge() -> TritonEdge:
    return TritonEdge(PB_UTILS, VOCOS_DECODER)


def arrays(response: Any) -> dict[str, np.ndarray]:
    assert response.error is None
    return {tensor.name: tensor.array for tensor in response.output_tensors}


def test_the_outputs_that_are_asked_for_are_sent(edge: TritonEdge):
    response = edge.response(Request(wanted=("PCM16", "AUDIO")), OUTPUTS)

    assert set(arrays(response)) == {"AUDIO", "PCM16"}


def test_an_output_is_sent_in_one_piece_of_memory(edge: TritonEdge):
    audio = np.arange(1024, dtype=np.float32).reshape(1, 1024)[:, ::2]

    sent = arrays(edge.response(Request(), {**OUTPUTS, "AUDIO": audio}))["AUDIO"]

    assert sent.flags.c_contiguous
    assert np.array_equal(sent, audio)


@pytest.mark.parametrize("wanted", [("AUDIO",), ("PCM16",)])
def test_b_80_an_output_of_another_type_is_an_error_that_names_it(
    edge: TritonEdge, wanted: tuple[str, ...]
):
    """Also if it was not asked for: it is a fault of ours in either case."""
    outputs = {**OUTPUTS, "AUDIO": AUDIO.astype(np.float64)}

    with pytest.raises(GenerationError) as caught:
        edge.response(Request(wanted=wanted), outputs)

    assert str(caught.value) == "AUDIO: made float64 of 2 dims, declared FP32 of 2"


def test_b_80_an_output_of_another_rank_is_an_error_that_names_it(edge: TritonEdge):
    with pytest.raises(GenerationError, match=r"^AUDIO: made float32 of 1 dims, declared"):
        edge.response(Request(), {**OUTPUTS, "AUDIO": AUDIO[0]})


def test_b_80_a_caller_gets_the_error_and_not_the_bytes(edge: TritonEdge):
    outputs = {**OUTPUTS, "AUDIO": AUDIO.astype(np.float64)}

    response = edge.answer(Request(), lambda _inputs, _parameters: outputs)

    assert response.output_tensors == []
    assert response.error.code == TritonError.INTERNAL
    assert response.error.message.startswith("vocos_decoder: AUDIO: made float64")


@pytest.mark.parametrize(
    ("error_type", "code"),
    [
        (InvalidRequestError, TritonError.INVALID_ARG),
        (OverloadedError, TritonError.UNAVAILABLE),
        (RequestCancelledError, TritonError.CANCELLED),
        (DeadlineExceededError, TritonError.CANCELLED),
        (GenerationError, TritonError.INTERNAL),
        (ModelLoadError, TritonError.INTERNAL),
        (ChatTTSError, TritonError.INTERNAL),
    ],
)
def test_an_error_has_its_code_and_the_models_name(
    edge: TritonEdge, error_type: type[ChatTTSError], code: str
):
    response = edge.error_response(error_type("what happened"), Request())

    assert response.error.code == code
    assert response.error.message == "vocos_decoder: what happened"


def test_an_error_that_a_model_passes_on_has_the_name_of_the_one_whose_it_is(edge: TritonEdge):
    error = OverloadedError("256 sequences wait")
    error.model = "gpt"

    response = edge.error_response(error, Request())

    assert response.error.message == "gpt: 256 sequences wait"
    assert response.error.code == TritonError.UNAVAILABLE


def test_a_bug_is_an_internal_error_and_logged_with_its_trace(
    edge: TritonEdge, caplog: pytest.LogCaptureFixture
):
    bug = KeyError("HIDDENS")

    response = edge.error_response(bug, Request())

    assert response.error.code == TritonError.INTERNAL
    assert response.error.message == "vocos_decoder: internal error: KeyError"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is bug


def test_a_model_is_given_the_tensors_that_were_sent_and_the_parameters(edge: TritonEdge):
    hiddens = np.ones((1, 3, 768), dtype=np.float32)
    request = Request({"HIDDENS": hiddens, "OTHER": AUDIO}, sent_parameters=json.dumps({"seed": 7}))
    given: list[Any] = []

    def run(inputs: dict[str, np.ndarray], parameters: dict[str, object]) -> Any:
        given.extend([inputs, parameters])
        return OUTPUTS

    sent = arrays(edge.answer(request, run))

    assert set(sent) == set(OUTPUTS)
    assert given == [{"HIDDENS": hiddens}, {"seed": 7}]


def test_a_request_without_parameters_has_none(edge: TritonEdge):
    assert edge.parameters(Request(sent_parameters="")) == {}


def of_stream(parameters: object) -> Request:
    return Request(sent_parameters=json.dumps({STREAM_PARAMETER: parameters}))


def test_a_call_of_a_stream_has_the_parameters_of_the_streams_caller(edge: TritonEdge):
    parameters = {"temperature": 0.25, "seed": 2**62 + 1, "refine": True, "voice": "a|b"}
    request = of_stream(json.dumps(parameters))

    assert edge.parameters(request) == parameters
    assert edge.is_for_stream(request)
    assert not edge.is_for_stream(Request(sent_parameters=json.dumps(parameters)))
    assert not edge.is_for_stream(Request())


@pytest.mark.parametrize("passed_on", ["", "{", "[1]", "null", 5, True, None, {"seed": 1}])
def test_parameters_that_no_stream_passes_on_are_refused(edge: TritonEdge, passed_on: object):
    with pytest.raises(InvalidRequestError, match=r"^stream_request: got .*, wanted a JSON object"):
        edge.parameters(of_stream(passed_on))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OverloadedError("full"), "overloaded: vocos_decoder: full"),
        (DeadlineExceededError("late"), "deadline_exceeded: vocos_decoder: late"),
        (KeyError("x"), "generation: vocos_decoder: internal error: KeyError"),
    ],
)
def test_an_error_of_a_streams_call_begins_with_its_type(
    edge: TritonEdge, error: Exception, message: str
):
    assert edge.error_response(error, of_stream("{}")).error.message == message


def test_also_a_call_whose_parameters_are_refused_is_answered(edge: TritonEdge):
    response = edge.answer(of_stream("{"), lambda _inputs, _parameters: OUTPUTS)

    assert response.error.code == TritonError.INVALID_ARG
    assert response.error.message.startswith("invalid_request: vocos_decoder: stream_request: got")


def refuse(_inputs: object, _parameters: object) -> Any:
    raise InvalidRequestError("TEXT: missing")


def break_down(_inputs: object, _parameters: object) -> Any:
    raise GenerationError("not finite")


def test_a_refused_warm_up_is_answered_empty_and_the_next_request_with_the_error():
    edge = TritonEdge(PB_UTILS, VOCOS_DECODER, num_warm_up_requests=1)

    warm_up, first = edge.answer(Request(), refuse), edge.answer(Request(), refuse)

    assert (warm_up.output_tensors, warm_up.error) == ([], None)
    assert first.error.code == TritonError.INVALID_ARG


def test_whoever_asks_is_told_of_an_error_but_not_of_a_refused_warm_up():
    edge = TritonEdge(PB_UTILS, VOCOS_DECODER, num_warm_up_requests=2)
    told: list[Exception] = []

    for run in (refuse, break_down, refuse, lambda _inputs, _parameters: OUTPUTS):
        edge.answer(Request(), run, told.append)

    assert list(map(str, told)) == ["not finite", "TEXT: missing"]


def test_a_warm_up_that_breaks_the_model_is_an_error():
    edge = TritonEdge(PB_UTILS, VOCOS_DECODER, num_warm_up_requests=1)

    assert edge.answer(Request(), break_down).error.code == TritonError.INTERNAL


def test_rows_are_padded_behind_with_zeros():
    padded = pad_rows([np.array([1, 2, 3], np.int32), np.array([4], np.int32)])

    assert padded.dtype == np.int32
    assert padded.tolist() == [[1, 2, 3], [4, 0, 0]]


def test_rows_of_vectors_are_padded_with_zero_vectors():
    padded = pad_rows([np.ones((1, 2), np.float32), np.full((2, 2), 3, np.float32)])

    assert padded.tolist() == [[[1, 1], [0, 0]], [[3, 3], [3, 3]]]


def test_rows_of_texts_are_padded_with_empty_ones():
    rows = [np.array([b"a"], np.object_), np.array([b"b", b"c"], np.object_)]

    assert pad_rows(rows).tolist() == [[b"a", b""], [b"b", b"c"]]


def test_segments_are_taken_apart_by_their_lengths():
    values = np.array([1, 2, 3, 4, 5, 0, 0])

    segments = split_segments("NUM_CODES", values, np.array([2, 3, 0]))

    assert [segment.tolist() for segment in segments] == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("lengths", "got"),
    [
        ([0], "0"),
        ([-1], "-1"),
        ([4], "4"),
        ([0, 0], "[0, 0]"),
        ([2, 2], "[2, 2]"),
        ([2, -1], "[2, -1]"),
        ([1, 0, 1], "[1, 0, 1]"),
    ],
)
def test_lengths_that_do_not_fit_the_values_are_refused_by_name(lengths: list[int], got: str):
    with pytest.raises(InvalidRequestError) as caught:
        split_segments("NUM_CODES", np.zeros(3), np.array(lengths))

    assert str(caught.value) == f"NUM_CODES: got {got}, wanted 1 to 3"


def test_a_call_is_measured_by_its_longest_row():
    longest = MAX_CALL_CODES // 4
    check_call_size("TEXT", [longest, 1, 1, 1])

    with pytest.raises(InvalidRequestError, match=r"^TEXT: got 4 rows of up to .* wanted at most"):
        check_call_size("TEXT", [longest + 1, 1, 1, 1])


def test_a_call_of_no_rows_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^TEXT: got 0 rows"):
        check_call_size("TEXT", [])


def test_a_column_holds_one_value_a_row():
    values = column([1, 2, 3], np.int64)

    assert (values.dtype, values.tolist()) == (np.int64, [[1], [2], [3]])
