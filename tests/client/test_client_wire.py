"""Building of requests and reading of answers, without a connection."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import numpy as np
import pytest
from fake_streams import silence
from fake_triton import fake_samples, response_of
from tritonclient.grpc import InferResult

import chattts_client
from chattts_client import GenerationError, InvalidRequestError, OptionArguments, StreamMode
from chattts_client._answer import parse_chunk, parse_response
from chattts_client._options import OPTION_DATATYPES, SynthesisOptions, option_tensors, text_tensor
from chattts_client._wire import CHANNEL_ARGS, infer_arguments, stream_request
from chattts_triton.cli.say_arguments import MODES
from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.tensors import CHATTTS, CHATTTS_STREAM, OPTIONS

ALL_OPTIONS = SynthesisOptions(
    seed=7,
    voice="蘁淰",
    speed=3,
    temperature=0.25,
    top_p=0.5,
    top_k=10,
    repetition_penalty=1.5,
    max_new_tokens=100,
    refine=True,
    lang="zh",
    trim=True,
)


def test_the_client_knows_the_options_of_the_models_contract():
    contract = {spec.name: spec.dtype.replace("STRING", "BYTES") for spec in OPTIONS}

    assert {name.upper(): datatype for name, datatype in OPTION_DATATYPES.items()} == contract
    fields = [field.name for field in dataclasses.fields(SynthesisOptions)]
    assert fields == [*OPTION_DATATYPES, "queue_priority"]
    assert set(OptionArguments.__annotations__) == set(fields)


def test_the_client_knows_the_outputs_and_the_sample_rate_of_the_contract():
    outputs = {spec.name: spec for spec in CHATTTS.outputs}

    [audio] = parse_response(answer(), 1)

    assert {output.name for output in answer()._result.outputs} == set(outputs)
    assert audio.sample_rate == SAMPLE_RATE_HZ


def test_the_client_knows_the_tensors_of_a_stream_of_the_contract():
    request = stream_request("chattts", "a", ALL_OPTIONS, "auto", 1.0)

    assert request.model_name == CHATTTS_STREAM.name
    assert {(tensor.name, tensor.datatype) for tensor in request.inputs} == {
        (spec.name, spec.dtype.replace("STRING", "BYTES")) for spec in CHATTTS_STREAM.inputs
    }
    assert all(list(tensor.shape) == [1, 1] for tensor in request.inputs)
    assert set(silence(0)) == {spec.name for spec in CHATTTS_STREAM.outputs}
    assert parse_chunk(InferResult(response_of(silence(0)))).index == 0
    assert get_args(StreamMode) == MODES


def test_the_priority_in_the_queue_is_a_parameter_of_either_call_and_no_tensor():
    options = SynthesisOptions(queue_priority=2)

    arguments = infer_arguments("chattts", ["a", "b"], options, 1.0)
    request = stream_request("chattts", "a", options, None, 1.0)

    assert arguments["parameters"] == {"queue_priority": 2}
    assert [tensor.name() for tensor in arguments["inputs"]] == ["TEXT"]
    assert request.parameters["queue_priority"].int64_param == 2
    assert [tensor.name for tensor in request.inputs] == ["TEXT"]
    assert infer_arguments("chattts", ["a"], SynthesisOptions(), 1.0)["parameters"] == {}


@pytest.mark.parametrize("priority", [1.0, True, "first", [0, 1]])
def test_a_priority_that_is_no_whole_number_is_refused(priority: Any):
    with pytest.raises(InvalidRequestError, match=r"^queue_priority: got .* a whole number"):
        infer_arguments("chattts", ["a", "b"], SynthesisOptions(queue_priority=priority), 1.0)


def test_the_public_names_exist_and_are_sorted():
    names = chattts_client.__all__

    assert all(hasattr(chattts_client, name) for name in names)
    # Constants, then classes, then functions.
    assert names == sorted(
        names, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
    )


def test_every_option_becomes_a_column_of_its_own_type():
    tensors = option_tensors(ALL_OPTIONS, 2)

    assert [(tensor.name, tensor.values.shape) for tensor in tensors] == [
        (spec.name, (2, 1)) for spec in OPTIONS
    ]
    assert [tensor.values[1, 0] for tensor in tensors] == [
        7, "蘁淰".encode(), 3, 0.25, 0.5, 10, 1.5, 100, True, b"zh", True,
    ]  # fmt: skip
    assert [tensor.values.dtype for tensor in tensors] == [
        np.int64, np.object_, np.int32, np.float32, np.float32,
        np.int32, np.float32, np.int32, np.bool_, np.object_, np.bool_,
    ]  # fmt: skip


def test_options_that_are_not_set_are_not_sent():
    assert option_tensors(SynthesisOptions(), 3) == []


@pytest.mark.parametrize("seeds", [[5, 6, 7], (5, 6, 7), np.array([5, 6, 7])])
def test_a_list_gives_each_text_its_own_value(seeds: Any):
    [tensor] = option_tensors(SynthesisOptions(seed=seeds), 3)

    assert tensor.values.tolist() == [[5], [6], [7]]


def test_b_66_text_is_sent_as_the_bytes_of_its_utf8():
    tensor = text_tensor(["😀你好", ""])

    assert tensor.values.tolist() == [["😀你好".encode()], [b""]]


@pytest.mark.parametrize("seed", [0, -1, 2147483648, 4294967296, 9223372036854775807])
def test_b_51_seeds_of_the_whole_range_are_sent_unchanged(seed: int):
    [tensor] = option_tensors(SynthesisOptions(seed=seed), 1)

    assert tensor.values.item() == seed


REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"seed": "42"}, "SEED: got '42', wanted a whole number"),  # B-51
    ({"seed": 1.5}, "SEED: got 1.5, wanted a whole number"),  # B-51
    ({"seed": True}, "SEED: got True, wanted a whole number"),
    ({"seed": 2**63}, "SEED: got 9223372036854775808, wanted -9223372036854775808 to "),
    ({"speed": 2**31}, "SPEED: got 2147483648, wanted -2147483648 to 2147483647"),
    ({"seed": [1, None]}, "SEED: got None, wanted a whole number"),
    ({"seed": [1, 2, 3]}, "SEED: got [1, 2, 3], wanted one value, or one for each of 2 texts"),
    ({"temperature": math.nan}, "TEMPERATURE: got nan, wanted a finite number"),
    ({"temperature": 1e39}, "TEMPERATURE: got 1e+39, wanted a finite number"),
    ({"temperature": 10**400}, "TEMPERATURE: got 1000000000"),
    ({"top_p": "0.5"}, "TOP_P: got '0.5', wanted a number"),
    ({"top_p": False}, "TOP_P: got False, wanted a number"),
    ({"refine": 1}, "REFINE: got 1, wanted true or false"),
    ({"voice": b"abc"}, "VOICE: got b'abc', wanted a text"),
    ({"lang": "\ud800"}, "LANG: got '\\ud800', wanted a text that UTF-8 can carry"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED_OPTIONS)
def test_an_option_that_its_tensor_cannot_hold_is_refused_by_name(
    options: dict[str, Any], message: str
):
    with pytest.raises(InvalidRequestError) as caught:
        option_tensors(SynthesisOptions(**options), 2)

    assert str(caught.value).startswith(message)


def test_a_refused_value_is_shortened_in_the_message():
    with pytest.raises(InvalidRequestError) as caught:
        option_tensors(SynthesisOptions(seed="x" * 1000), 1)  # type: ignore[arg-type]

    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("texts", [[], (), "a text", ["a", b"b"], [None], ["a\udcff"]])
def test_texts_that_are_no_texts_are_refused(texts: Any):
    with pytest.raises(InvalidRequestError, match=r"^TEXT: got .*, wanted a "):
        text_tensor(texts)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="sped"):
        SynthesisOptions(sped=5)  # type: ignore[call-arg]


def test_the_timeout_is_set_for_this_end_in_seconds_and_for_the_server_in_microseconds():
    arguments = infer_arguments("chattts", ["a"], SynthesisOptions(), 2.5)

    assert arguments["client_timeout"] == 2.5
    assert arguments["timeout"] == 2_500_000


def test_a_timeout_below_a_microsecond_does_not_become_no_timeout():
    assert infer_arguments("chattts", ["a"], SynthesisOptions(), 1e-9)["timeout"] == 1


@pytest.mark.parametrize("timeout_s", [0, -1.0, math.nan, math.inf, 1e6])
def test_a_timeout_that_bounds_nothing_is_refused(timeout_s: float):
    with pytest.raises(InvalidRequestError, match=r"^timeout_s: got "):
        infer_arguments("chattts", ["a"], SynthesisOptions(), timeout_s)


def test_the_channel_takes_the_largest_answer_and_pings_no_faster_than_triton_allows():
    limits = dict(CHANNEL_ARGS)

    largest_bytes = 64 * (512 * 2048 - 256) * (4 + 2)
    assert limits["grpc.max_send_message_length"] > largest_bytes
    assert limits["grpc.max_receive_message_length"] > largest_bytes
    assert limits["grpc.keepalive_time_ms"] >= 300_000


def test_the_channel_tries_again_soon_and_gives_each_attempt_seconds():
    limits = dict(CHANNEL_ARGS)

    assert limits["grpc.initial_reconnect_backoff_ms"] <= 200
    assert limits["grpc.max_reconnect_backoff_ms"] <= 1000
    assert limits["grpc.min_reconnect_backoff_ms"] >= 2000  # gRPC's limit of one attempt


def answer(num_texts: int = 1, **changes: np.ndarray | None) -> InferResult:
    outputs: dict[str, np.ndarray | None] = {
        "AUDIO": np.stack([fake_samples("ab", row) for row in range(num_texts)]),
        "AUDIO_LENGTH": np.full((num_texts, 1), 1000, np.int64),
        "SEED_USED": np.arange(num_texts, dtype=np.int64).reshape(-1, 1),
        "FINISH_REASON": np.full((num_texts, 1), b"stop", np.object_),
        "PCM16": np.full((num_texts, 1280), 5, np.int16),
        "REFINED_TEXT": np.full((num_texts, 1), "一个".encode(), np.object_),
        "WARNINGS": np.full((num_texts, 1), b'["refine_refused"]', np.object_),
    }
    outputs.update(changes)
    return InferResult(
        response_of({name: values for name, values in outputs.items() if values is not None})
    )


def test_b_52_each_row_is_cut_to_its_own_length():
    lengths = np.array([[1280], [768]], np.int64)

    audios = parse_response(answer(2, AUDIO_LENGTH=lengths), 2)

    assert [audio.samples.shape for audio in audios] == [(1280,), (768,)]
    assert [audio.pcm16.shape for audio in audios if audio.pcm16 is not None] == [(1280,), (768,)]
    assert np.array_equal(audios[1].samples, fake_samples("ab", 1)[:768])


def test_b_60_as_many_audios_as_texts_come_in_the_order_of_the_texts():
    audios = parse_response(answer(6), 6)

    assert [audio.seed for audio in audios] == [0, 1, 2, 3, 4, 5]


def test_samples_are_owned_and_may_be_changed():
    [audio] = parse_response(answer(), 1)

    audio.samples[:] = 0.0

    assert audio.samples.base is None
    assert audio.samples.dtype == np.float32


def test_an_answer_without_pcm16_is_whole():
    [audio] = parse_response(answer(PCM16=None), 1)

    assert audio.pcm16 is None


BROKEN_ANSWERS: list[tuple[str, np.ndarray | None, str]] = [
    ("AUDIO", None, "AUDIO: missing"),
    ("SEED_USED", None, "SEED_USED: missing"),
    # B-59: one and two dimensions are told apart.
    ("AUDIO", np.zeros(1280, np.float32), "AUDIO: got float32 [1280] from the server, wanted"),
    # B-60: two texts never get one joined audio.
    ("AUDIO", np.zeros((2, 1280), np.float32), "AUDIO: got float32 [2, 1280]"),
    ("AUDIO", np.zeros((1, 1280), np.float64), "AUDIO: got float64 [1, 1280]"),  # B-80
    ("AUDIO", np.full((1, 1280), np.nan, np.float32), "AUDIO: got NaN"),  # B-43
    ("PCM16", np.zeros((1, 9), np.int16), "PCM16: got int16 [1, 9] from the server, wanted int16"),
    ("AUDIO_LENGTH", np.array([[0]], np.int64), "AUDIO_LENGTH: got 0 from the server"),  # B-38
    ("AUDIO_LENGTH", np.array([[1281]], np.int64), "AUDIO_LENGTH: got 1281 from the server"),
    ("AUDIO_LENGTH", np.array([1000], np.int64), "AUDIO_LENGTH: got int64 [1]"),
    ("FINISH_REASON", np.array([[b"abort"]], np.object_), "FINISH_REASON: got 'abort'"),
]


@pytest.mark.parametrize(("name", "values", "message"), BROKEN_ANSWERS)
def test_an_answer_that_breaks_the_contract_is_an_error_that_names_the_output(
    name: str, values: np.ndarray | None, message: str
):
    with pytest.raises(GenerationError) as caught:
        parse_response(answer(**{name: values}), 1)

    assert str(caught.value).startswith(message)


def test_bytes_that_do_not_fill_the_shape_are_a_damaged_answer():
    result = answer()
    result._result.raw_output_contents[0] = b"\0" * 8

    with pytest.raises(GenerationError, match=r"^AUDIO: the server's answer is damaged"):
        parse_response(result, 1)


def test_a_refined_text_and_warnings_come_with_the_audio_where_the_server_has_them():
    [audio] = parse_response(answer(), 1)
    [older] = parse_response(answer(REFINED_TEXT=None, WARNINGS=None), 1)

    assert (audio.refined_text, audio.warnings) == ("一个", ("refine_refused",))
    assert (older.refined_text, older.warnings) == ("", ())


@pytest.mark.parametrize("warnings", [b"[", b"{}", b"[1]"])
def test_warnings_that_are_no_list_of_codes_are_refused(warnings: bytes):
    with pytest.raises(GenerationError, match="WARNINGS"):
        parse_response(answer(WARNINGS=np.array([[warnings]], np.object_)), 1)
