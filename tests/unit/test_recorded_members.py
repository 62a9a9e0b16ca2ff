"""Where a request begins and where it ends: the two outer members over a stand-in of Triton."""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_pb_utils import WAIT_S

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.serving.edge import STREAM_PARAMETER, ModelArgs, TritonEdge
from chattts_triton.serving.preprocess import PreprocessMember
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.vocos_decoder import VocosDecoderMember
from chattts_triton.tensors import PREPROCESS, VOCOS_DECODER, ModelSpec

TEXT = "你好，世界。"


@dataclass
class Tensor:
    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


@dataclass
class Response:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: Any = None

    def __getitem__(self, name: str) -> np.ndarray:
        (found,) = (tensor for tensor in self.output_tensors if tensor.name == name)
        return found.array


@dataclass
class Request:
    """A request that asks for every output, as an ensemble does."""

    spec: ModelSpec
    inputs: dict[str, np.ndarray]
    sent_parameters: dict[str, Any] = field(default_factory=dict)
    timeout_us: int = 0
    sent: queue.SimpleQueue[Response] = field(default_factory=queue.SimpleQueue)

    def get_response_sender(self) -> Any:
        return SimpleNamespace(send=lambda response, flags: self.sent.put(response))

    def requested_output_names(self) -> list[str]:
        return [output.name for output in self.spec.outputs]

    def parameters(self) -> str:
        return json.dumps(self.sent_parameters)

    def timeout(self) -> int:
        return self.timeout_us

    def request_id(self) -> str:
        return "r-1"


class Error:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = (
        "invalid",
        "unavailable",
        "cancelled",
        "internal",
    )

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


class Counts:
    """Triton's metrics: what was added to each series, by name and outcome or reason."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        counts = self

        class Family:
            COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

            def __init__(self, *, name: str, **_arguments: Any) -> None:
                self._name = name

            def Metric(self, *, labels: dict[str, str], **_buckets: Any) -> Any:  # noqa: N802
                label = labels.get("outcome") or labels.get("reason") or ""
                key = f"{self._name} {label}".strip()

                def add(amount: float) -> None:
                    counts.totals[key] = counts.totals.get(key, 0) + amount

                return SimpleNamespace(increment=add, observe=lambda _value: add(1))

        self.pb_utils = SimpleNamespace(
            TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
            MetricFamily=Family,
            TritonError=Error,
            Tensor=Tensor,
            InferenceResponse=lambda output_tensors=(), error=None: Response(
                list(output_tensors), error
            ),
            get_input_tensor_by_name=lambda request, name: (
                Tensor(name, request.inputs[name]) if name in request.inputs else None
            ),
        )


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def make(
    counts: Counts,
    tiny_repositories: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
) -> Callable[..., Any]:
    """A member of the tiny export."""
    caplog.set_level(logging.DEBUG, "chattts_triton.serving.request_log")

    def make(kind: type, spec: ModelSpec, num_warm_ups: int = 0) -> Any:
        args = ModelArgs(
            {
                "model_repository": str(tiny_repositories["fp32"] / spec.name),
                "model_instance_kind": "CPU",
                "model_config": "{}",
            }
        )
        edge = TritonEdge(counts.pb_utils, spec, num_warm_up_requests=num_warm_ups)
        return kind(edge, args, Metrics(counts.pb_utils, args.ensemble))

    return make


def text_request(*texts: str, **parameters: Any) -> Request:
    inputs = {"TEXT": np.array([[text.encode()] for text in texts], dtype=object)}
    return Request(PREPROCESS, inputs, parameters)


def codes_request(record: RequestRecord | None, num_steps: int = 3) -> Request:
    inputs = {
        "HIDDENS": np.zeros((1, 3, 768), np.float32),
        "NUM_CODES": np.array([[num_steps]], np.int32),
        "SEED": np.array([[1]], np.int64),
    }
    if record:
        inputs["RECORD"] = to_tensor(record, 1)
    return Request(VOCOS_DECODER, inputs)


def decoded(member: VocosDecoderMember, request: Request) -> Response:
    member.accept(request)
    return request.sent.get(timeout=WAIT_S)


def lines(caplog: pytest.LogCaptureFixture, event: str = "request") -> list[dict[str, Any]]:
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    return [each for each in fields if each["event"] == event]


def test_preprocess_begins_the_record_and_writes_nothing_down(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(PreprocessMember, PREPROCESS)

    response = member.answer(text_request(TEXT, "再见", seed=7))
    member.close()

    record = RequestRecord.from_tensor(response["RECORD"])
    assert record is not None
    assert (record.id, record.seed, record.num_texts) == ("r-1", 7, 2)
    assert record.characters == len(TEXT) + len("再见")
    assert lines(caplog) == []
    assert counts.totals == {}


def test_a_text_is_logged_at_debug_with_its_request(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    member = make(PreprocessMember, PREPROCESS)

    member.answer(text_request(TEXT))
    member.close()

    (line,) = lines(caplog, "text")
    assert (line["id"], line["row"], line["text"]) == ("r-1", 0, TEXT)


def test_a_request_that_preprocess_refuses_ends_there(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(PreprocessMember, PREPROCESS)

    response = member.answer(text_request(TEXT, speed=10))
    member.close()

    assert response.error.code == Error.INVALID_ARG
    (line,) = lines(caplog)
    assert (line["id"], line["outcome"]) == ("r-1", "invalid")
    assert line["error"] == "SPEED: got 10, wanted 0 to 9"
    assert counts.totals == {"chattts_requests_total invalid": 1}


def test_preprocess_leaves_a_stream_to_its_own_model(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(PreprocessMember, PREPROCESS)
    parameters = {STREAM_PARAMETER: json.dumps({"speed": 10})}

    response = member.answer(text_request(TEXT, **parameters))
    member.close()

    assert response.error.code == Error.INVALID_ARG
    assert lines(caplog) == []
    assert counts.totals == {}


def test_a_refused_warm_up_is_no_request(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(PreprocessMember, PREPROCESS, num_warm_ups=1)

    response = member.answer(text_request(""))
    member.close()

    assert response.error is None
    assert lines(caplog) == []
    assert counts.totals == {}


def test_a_request_that_was_spoken_ends_in_vocos_decoder(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(VocosDecoderMember, VOCOS_DECODER)
    record = RequestRecord.begin("r-1")
    record.num_texts, record.characters, record.steps = 1, 6, 3

    response = decoded(member, codes_request(record))
    member.close()

    audio_s = int(response["AUDIO_LENGTH"][0, 0]) / SAMPLE_RATE_HZ
    assert audio_s == (3 * 512 - 256) / SAMPLE_RATE_HZ
    (line,) = lines(caplog)
    assert (line["outcome"], line["steps"], line["audio_s"]) == ("ok", 3, round(audio_s, 3))
    assert counts.totals == {
        "chattts_requests_total ok": 1,
        "chattts_finish_reasons_total stop": 1,
        "chattts_audio_seconds_total": audio_s,
        "chattts_characters_total": 6,
        "chattts_time_to_first_audio_seconds": 1,
        "chattts_request_seconds": 1,
    }


def test_a_request_that_cannot_be_decoded_ends_with_its_error(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(VocosDecoderMember, VOCOS_DECODER)

    response = decoded(member, codes_request(RequestRecord.begin("r-1"), num_steps=4))
    member.close()

    assert response.error.code == Error.INVALID_ARG
    (line,) = lines(caplog)
    assert (line["outcome"], line["error"]) == ("invalid", "NUM_CODES: got 4, wanted 1 to 3")
    assert counts.totals == {"chattts_requests_total invalid": 1}


def test_codes_without_a_record_are_decoded_and_not_written_down(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(VocosDecoderMember, VOCOS_DECODER)

    response = decoded(member, codes_request(None))
    member.close()

    assert response.error is None
    assert lines(caplog) == []
    assert counts.totals == {}


def test_a_damaged_record_is_refused_and_not_written_down(
    make: Callable[..., Any], counts: Counts, caplog: pytest.LogCaptureFixture
):
    member = make(VocosDecoderMember, VOCOS_DECODER)
    request = codes_request(None)
    request.inputs["RECORD"] = np.array([[b'{"id": "\n forged"}']], dtype=object)

    response = decoded(member, request)
    member.close()

    assert response.error.code == Error.INVALID_ARG
    assert response.error.message.startswith("vocos_decoder: RECORD: got ")
    assert lines(caplog) == []
    assert counts.totals == {}


def test_what_is_asked_for_too_late_is_not_decoded(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
):
    member = make(VocosDecoderMember, VOCOS_DECODER)
    request = codes_request(RequestRecord.begin("r-1"))
    request.timeout_us = 1

    response = decoded(member, request)
    member.close()

    assert response.error.message.startswith("vocos_decoder: deadline of 0 ms exceeded")
    assert lines(caplog)[0]["outcome"] == "deadline"


def test_a_short_text_and_a_window_of_a_stream_end_before_a_long_text_that_came_first(
    make: Callable[..., Any],
):
    member = make(VocosDecoderMember, VOCOS_DECODER)
    order: list[str] = []
    long, short = codes_request(None), codes_request(None)
    long.inputs |= {
        "HIDDENS": np.zeros((1, 3 * 40, 768), np.float32),
        "NUM_CODES": np.full((1, 40), 3, np.int32),
        "SEED": np.ones((1, 40), np.int64),
    }
    window = codes_request(None)
    window.sent_parameters = {STREAM_PARAMETER: "{}"}
    for name, request in (("long", long), ("short", short), ("window", window)):
        request.sent = SimpleNamespace(put=lambda _response, name=name: order.append(name))
        member.accept(request)

    member.close()

    assert sorted(order) == ["long", "short", "window"]
    assert order[-1] == "long"
