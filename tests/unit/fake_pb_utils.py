"""A stand-in of Triton's module `triton_python_backend_utils` that keeps to its rules."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chattts_triton.serving.edge import ModelArgs

FINAL = 1
WAIT_S = 30.0  # for what comes at once, however busy the machine is


class TritonError:
    """As the real one, it has the codes as class attributes."""

    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = (
        "invalid",
        "unavailable",
        "cancelled",
        "internal",
    )

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message = message
        self.code = code

    def message(self) -> str:
        return self._message


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """What the module itself raises."""


@dataclass
class Tensor:
    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: Any = None) -> None:
        self._tensors = {tensor.name: tensor for tensor in output_tensors or []}
        self._error = error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError:
        return self._error

    def tensor(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    def arrays(self) -> dict[str, np.ndarray]:
        assert self._error is None, self._error.message()
        return {name: tensor.array for name, tensor in self._tensors.items()}


class Sender:
    """Of one request. Whoever uses it once the final flag was sent fails, and is remembered."""

    def __init__(self) -> None:
        self.sent: list[tuple[InferenceResponse | None, int]] = []
        self.is_gone = False  # the caller
        self.has_ended = threading.Event()
        self.has_sent = threading.Event()
        self.num_misuses = 0

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self._check()
        if response is None and flags != FINAL:
            raise TritonModelException("only the final flag may be sent alone")
        self.sent.append((response, flags))
        self.has_sent.set()
        if flags == FINAL:
            self.has_ended.set()

    def is_cancelled(self) -> bool:
        self._check()
        return self.is_gone

    def _check(self) -> None:
        if self.has_ended.is_set():
            self.num_misuses += 1
            raise TritonModelException("response sender has been closed")

    def wait(self) -> list[InferenceResponse]:
        """Every response, once the request has ended; it has one final flag, at the end."""
        assert self.has_ended.wait(WAIT_S)
        assert [flags for _, flags in self.sent] == [0] * (len(self.sent) - 1) + [FINAL]
        assert self.num_misuses == 0
        return [response for response, _ in self.sent if response is not None]

    def error(self) -> TritonError:
        """The error that ended the request."""
        return self.wait()[-1].error()

    def chunks(self) -> list[dict[str, np.ndarray]]:
        """The tensors of every response of a request that ended well."""
        return [response.arrays() for response in self.wait()]


@dataclass
class Request:
    """What a model is given, and the sender of its answers."""

    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    sent_parameters: Mapping[str, object] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    id: str = "r-1"
    timeout_us: int = 0
    sender: Sender = field(default_factory=Sender)

    def requested_output_names(self) -> list[str]:
        return list(self.outputs)

    def parameters(self) -> str:
        return json.dumps(self.sent_parameters)

    def request_id(self) -> str:
        return self.id

    def timeout(self) -> int:
        return self.timeout_us

    def trace(self) -> str:
        return f"trace of {self.id}"

    def get_response_sender(self) -> Sender:
        return self.sender


class MetricFamily:
    """Series that nobody looks at."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self, **_arguments: Any) -> None:
        pass

    def Metric(self, **_arguments: Any) -> MetricFamily:  # noqa: N802 - Triton's name
        return self

    def increment(self, amount: float) -> None:
        """Counts nothing."""

    def observe(self, value: float) -> None:
        """Counts nothing."""


@dataclass
class Call:
    """A call of one model by another."""

    model: str
    outputs: tuple[str, ...]
    inputs: dict[str, np.ndarray]
    request_id: str
    timeout_us: int
    parameters: dict[str, object]
    trace: Any


# Answers a call with its tensors, or with the text that is left of an error.
Model = Callable[[Call], dict[str, np.ndarray] | str]


class PbUtils:
    """The module. `models` are those that can be called, `calls` those that were, in order."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    TritonError = TritonError
    TritonModelException = TritonModelException
    Tensor = Tensor
    InferenceResponse = InferenceResponse
    MetricFamily = MetricFamily

    def __init__(self, models: Mapping[str, Model] | None = None) -> None:
        self.models = dict(models or {})
        self.calls: list[Call] = []

    def get_input_tensor_by_name(self, request: Request, name: str) -> Tensor | None:
        return Tensor(name, request.inputs[name]) if name in request.inputs else None

    def get_output_tensor_by_name(self, response: InferenceResponse, name: str) -> Tensor | None:
        return response.tensor(name)

    def InferenceRequest(  # noqa: N802 - Triton's own
        self,
        *,
        model_name: str,
        requested_output_names: list[str],
        inputs: list[Tensor],
        request_id: str,
        timeout: int,
        parameters: dict[str, object],
        trace: Any = None,
    ) -> _Inference:
        for value in parameters.values():
            if not isinstance(value, bool | int | str):
                raise TritonModelException("parameters may be bool, int or str")
        arrays = {tensor.name: tensor.array for tensor in inputs}
        outputs = tuple(requested_output_names)
        call = Call(model_name, outputs, arrays, request_id, timeout, parameters, trace)
        return _Inference(self, call)


class _Inference:
    def __init__(self, triton: PbUtils, call: Call) -> None:
        self._triton = triton
        self._call = call

    def exec(self) -> InferenceResponse:
        """Blocks until the model has answered; its error's code is lost."""
        call = self._call
        self._triton.calls.append(call)
        if call.model not in self._triton.models:
            text = f"Model '{call.model}' is not ready."
            return InferenceResponse(error=TritonError(text))
        answer = self._triton.models[call.model](call)
        if isinstance(answer, str):
            return InferenceResponse(error=TritonError(answer))
        return InferenceResponse([Tensor(name, answer[name]) for name in call.outputs])


def model_args(directory: object, **parameters: object) -> ModelArgs:
    """What Triton tells a model in such a directory with such parameters."""
    config = {name: {"string_value": str(value)} for name, value in parameters.items()}
    return ModelArgs(
        {
            "model_repository": str(directory),
            "model_instance_kind": "CPU",
            "model_config": json.dumps({"parameters": config}),
        }
    )
