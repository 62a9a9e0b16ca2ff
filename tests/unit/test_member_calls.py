"""What `chattts_stream` sends to the members, and what it makes of their answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_pb_utils import Call, PbUtils, Request

from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
)
from chattts_triton.serving.edge import NUMPY_DTYPES, Tensors, TritonEdge
from chattts_triton.serving.member_calls import MemberCalls
from chattts_triton.tensors import GPT, PREPROCESS, VOCOS_DECODER, ModelSpec

SPECS = {"preprocess": PREPROCESS, "gpt": GPT, "vocos_decoder": VOCOS_DECODER}
PARAMETERS = {"temperature": 0.1, "seed": 2**60, "refine": True, "voice": "a|b", "top_p": 1e-7}
TIMEOUT_S = 12.5


def zeros(call: Call) -> Tensors:
    """One zero or empty text in each output that is asked for."""
    (spec,) = (each for each in SPECS.values() if call.model.endswith(each.name))
    made = {
        output.name: np.zeros([1] * (len(output.shape) + 1), NUMPY_DTYPES[output.dtype])
        for output in spec.outputs
    }
    return {name: made[name] for name in call.outputs}


@pytest.fixture
def triton() -> PbUtils:
    return PbUtils(dict.fromkeys((*SPECS, *(f"second_{name}" for name in SPECS)), zeros))


def calls_of(triton: PbUtils, set_name: str = "chattts") -> MemberCalls:
    return MemberCalls(triton, set_name, Request(id="r-9"), PARAMETERS, TIMEOUT_S)


def call_each(calls: MemberCalls) -> None:
    prompt = calls.preprocess({"TEXT": np.array([[b"hi"]], dtype=object)})
    calls.open("s", prompt, 20)
    calls.read("s", 1, 30, 4)
    calls.close("s")
    calls.decode(np.zeros((3, 8), np.float32))


MODELS = ["preprocess", "gpt", "gpt", "gpt", "vocos_decoder"]


@pytest.mark.parametrize(("set_name", "prefix"), [("chattts", ""), ("second", "second_")])
def test_the_members_of_the_streams_own_set_are_called(triton: PbUtils, set_name: str, prefix: str):
    call_each(calls_of(triton, set_name))

    assert [call.model for call in triton.calls] == [f"{prefix}{model}" for model in MODELS]


def test_every_call_has_the_timeout_and_the_id_of_the_request_and_not_its_trace(triton: PbUtils):
    call_each(calls_of(triton))

    assert len(triton.calls) == len(MODELS)
    for call in triton.calls:
        assert (call.timeout_us, call.request_id) == (12_500_000, "r-9")
        assert call.trace is None  # Triton has let go of the request's by then


def test_a_timeout_too_short_to_be_sent_is_not_none(triton: PbUtils):
    MemberCalls(triton, "chattts", Request(), {}, 1e-9).close("s")

    assert triton.calls[0].timeout_us == 1


@pytest.mark.parametrize("spec", [PREPROCESS, GPT, VOCOS_DECODER], ids=lambda spec: spec.name)
def test_a_member_is_given_the_parameters_of_the_caller_floats_among_them(
    triton: PbUtils, spec: ModelSpec
):
    call_each(calls_of(triton))

    edge = TritonEdge(triton, spec)
    for call in triton.calls:
        if call.model == spec.name:
            request = Request(sent_parameters=call.parameters)
            assert edge.parameters(request) == PARAMETERS
            assert edge.is_for_stream(request)


def test_every_tensor_is_declared_and_of_its_type(triton: PbUtils):
    call_each(calls_of(triton))

    for call in triton.calls:
        declared = {spec.name: spec for spec in SPECS[call.model].inputs}
        for name, array in call.inputs.items():
            assert array.dtype == NUMPY_DTYPES[declared[name].dtype]
            assert array.ndim == len(declared[name].shape) + 1
        assert set(call.outputs) <= {spec.name for spec in SPECS[call.model].outputs}


def test_a_prompt_is_sent_once_and_without_what_gpt_does_not_take(triton: PbUtils):
    call_each(calls_of(triton))

    _, opened, read, closed, _ = (set(call.inputs) for call in triton.calls)
    reads = {"STREAM_ID", "SEGMENT", "CURSOR", "MIN_CODES"}
    assert read == closed == reads
    assert opened == {spec.name for spec in GPT.inputs}
    assert "PAUSE_SAMPLES" in triton.calls[0].outputs


def test_a_read_says_what_it_wants_and_a_close_wants_nothing(triton: PbUtils):
    call_each(calls_of(triton))

    def said(call: Call) -> list[int]:
        assert call.inputs["STREAM_ID"][0, 0] == b"s"
        return [int(call.inputs[name][0, 0]) for name in ("SEGMENT", "CURSOR", "MIN_CODES")]

    assert [said(call) for call in triton.calls[1:4]] == [[0, 0, 20], [1, 30, 4], [0, 0, 0]]


def test_no_read_wants_more_steps_than_gpt_lets_it(triton: PbUtils):
    calls_of(triton).read("s", 0, 0, 2101)

    assert triton.calls[0].inputs["MIN_CODES"][0, 0] == 2048


ERRORS = [
    InvalidRequestError("SPEED: got 10, wanted 0 to 9"),
    OverloadedError("256 sequences wait"),
    RequestCancelledError("cancelled after 7 steps"),
    DeadlineExceededError("deadline of 5 ms exceeded after 3 steps"),
    GenerationError("logits are not finite | at step 3"),
    ModelLoadError("gpt.onnx: missing"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.error_type)
@pytest.mark.parametrize("member", SPECS)
def test_an_error_of_a_member_is_the_same_error_here_and_says_whose_it_is(
    triton: PbUtils, member: str, error: ChatTTSError
):
    """From the member's edge, through a call that leaves its text alone, to the caller's edge."""
    edge = TritonEdge(triton, SPECS[member])
    triton.models[member] = lambda call: (
        edge.error_response(error, Request(sent_parameters=call.parameters)).error().message()
    )

    with pytest.raises(ChatTTSError) as caught:
        call_each(calls_of(triton))

    assert type(caught.value) is type(error)
    assert (str(caught.value), caught.value.model) == (str(error), member)
    own_edge = TritonEdge(triton, ModelSpec("chattts_stream", (), (), is_stream=True))
    answer = own_edge.error_response(caught.value, Request()).error()
    assert answer.message() == f"{error.error_type}: {member}: {error}"
    assert answer.code == getattr(triton.TritonError, error.triton_code)


@pytest.mark.parametrize(
    "text",
    [
        "Stub process 'gpt_0_0' is not healthy.",
        "gpt: not ours",
        "no_such_type: gpt: what happened",
        ": ",
        "",
    ],
)
def test_a_text_that_no_edge_of_ours_wrote_is_a_generation_error(triton: PbUtils, text: str):
    triton.models["gpt"] = lambda _call: text

    with pytest.raises(GenerationError) as caught:
        calls_of(triton).close("s")

    assert str(caught.value) == f"gpt: {text}"
    assert caught.value.model is None


def test_a_member_that_is_not_loaded_is_a_generation_error(triton: PbUtils):
    del triton.models["gpt"]

    with pytest.raises(GenerationError, match=r"^gpt: Model 'gpt' is not ready"):
        calls_of(triton).read("s", 0, 0, 1)


def test_a_call_that_cannot_even_be_sent_is_a_generation_error(triton: PbUtils):
    def fail(_call: Call) -> Tensors:
        raise triton.TritonModelException("no shared memory is left")

    triton.models["vocos_decoder"] = fail

    with pytest.raises(GenerationError, match="vocos_decoder cannot be called: no shared memory"):
        calls_of(triton).decode(np.zeros((3, 8), np.float32))


def test_audio_comes_back_as_one_row():
    audio = np.arange(1280, dtype=np.float32)
    triton = PbUtils({"vocos_decoder": lambda _call: {"AUDIO": audio[None]}})

    decoded = calls_of(triton).decode(np.zeros((3, 8), np.float32))

    assert np.array_equal(decoded, audio)
    (call,) = triton.calls
    assert call.inputs["HIDDENS"].shape == (1, 3, 8)
    assert call.inputs["NUM_CODES"].tolist() == [[3]]
    assert json.loads(call.parameters["stream_request"]) == PARAMETERS
