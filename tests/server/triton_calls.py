"""Calls of the real server by plain tritonclient and plain HTTP, as foreign clients make them."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from chattts_triton.manifest import Manifest, load_manifest
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.tensors import (
    CHATTTS,
    CHATTTS_STREAM,
    GPT,
    OPTIONS,
    PREPROCESS,
    TEXT,
    VOCOS_DECODER,
)

TIMEOUT_S = 60.0
START_TIMEOUT_S = 90.0

Outputs = dict[str, np.ndarray]

_NUMPY = {
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
}
_SPECS = {spec.name: spec for spec in (CHATTTS, CHATTTS_STREAM, PREPROCESS, GPT, VOCOS_DECODER)}


@dataclass(frozen=True)
class Refusal:
    """How a call was refused."""

    status: str  # gRPC's name of it
    text: str


@dataclass
class RunningServer:
    """A server, and the calls that tests make of it; any thread may call."""

    grpc_url: str
    http_url: str
    metrics_url: str
    repository: Path
    client: grpcclient.InferenceServerClient = field(repr=False)

    @property
    def manifest(self) -> Manifest:
        return load_manifest(self.repository)

    def infer(
        self,
        model: str,
        tensors: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout_us: int | None = None,
        client_timeout_s: float = TIMEOUT_S,
        request_id: str = "",
    ) -> grpcclient.InferResult:
        """One gRPC call; a value that is no array becomes one of the type that is declared."""
        return self.client.infer(
            model,
            [infer_input(model, name, values) for name, values in tensors.items()],
            outputs=[grpcclient.InferRequestedOutput(name) for name in outputs or ()] or None,
            parameters=dict(parameters or {}),
            timeout=timeout_us,
            request_id=request_id,
            client_timeout=client_timeout_s,
        )

    def call(self, model: str, tensors: Mapping[str, Any], **arguments: Any) -> Outputs:
        """The outputs of a gRPC call by name."""
        result = self.infer(model, tensors, **arguments)
        return {
            tensor.name: result.as_numpy(tensor.name) for tensor in result.get_response().outputs
        }

    def refusal(self, model: str, tensors: Mapping[str, Any], **arguments: Any) -> Refusal:
        """The error of a gRPC call that must fail."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, tensors, **arguments)
        return refusal_of(caught.value)

    def speak(
        self,
        texts: str | bytes | Sequence[str | bytes],
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout_us: int | None = None,
        client_timeout_s: float = TIMEOUT_S,
        **options: Any,
    ) -> list[Speech]:
        """What `chattts` makes of texts; an option is one value for all or one for each."""
        tensors = text_tensors(texts, **options)
        outputs = self.call(
            "chattts",
            tensors,
            parameters=parameters,
            timeout_us=timeout_us,
            client_timeout_s=client_timeout_s,
        )
        return [Speech.of_row(outputs, row) for row in range(len(tensors["TEXT"]))]

    def speak_one(self, text: str, **options: Any) -> Speech:
        (speech,) = self.speak(text, **options)
        return speech

    def refused(self, texts: str | bytes | Sequence[str | bytes], **options: Any) -> Refusal:
        """The error of a call of `chattts` that must fail."""
        with pytest.raises(InferenceServerException) as caught:
            self.speak(texts, **options)
        return refusal_of(caught.value)

    def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an HTTP call of the model `chattts`."""
        request = urllib.request.Request(
            f"http://{self.http_url}/v2/models/chattts/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        with urllib.request.urlopen(
            f"http://{self.metrics_url}/metrics", timeout=TIMEOUT_S
        ) as page:
            lines = page.read().decode().splitlines()
        samples = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name}{{")]
        assert samples, f"{name}: no such metric"
        return sum(float(sample) for sample in samples)

    def sample(self, name: str) -> float:
        """One sample, by its name and labels as they are written."""
        url = f"http://{self.metrics_url}/metrics"
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
            lines = page.read().decode().splitlines()
        (found,) = (line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} "))
        return float(found)

    def assert_alive(self) -> None:
        """The next request succeeds."""
        assert len(self.speak_one("你好", SEED=1, MAX_NEW_TOKENS=1).samples) == 256


@dataclass(frozen=True)
class Speech:
    """One row of an answer of `chattts`, cut to its own length."""

    audio: bytes
    pcm16: bytes
    seed: int
    finish_reason: str
    padding: bytes  # what stands behind the row's samples in AUDIO

    @classmethod
    def of_row(cls, outputs: Outputs, row: int) -> Speech:
        length = int(outputs["AUDIO_LENGTH"][row, 0])
        assert outputs["AUDIO"].shape == outputs["PCM16"].shape
        return cls(
            audio=outputs["AUDIO"][row, :length].tobytes(),
            pcm16=outputs["PCM16"][row, :length].tobytes(),
            seed=int(outputs["SEED_USED"][row, 0]),
            finish_reason=outputs["FINISH_REASON"][row, 0].decode(),
            padding=outputs["AUDIO"][row, length:].tobytes(),
        )

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(self.audio, dtype=np.float32)

    def is_sound(self) -> bool:
        """Finite, within full scale, and not silent."""
        peak = float(np.abs(self.samples).max(initial=0.0))
        return bool(np.isfinite(self.samples).all()) and 1e-4 < peak <= 1.0


@contextlib.contextmanager
def running_server(
    repository: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    with (
        serve_in_background(
            repository, arguments=arguments, environment=environment, timeout_s=START_TIMEOUT_S
        ) as server,
        grpcclient.InferenceServerClient(server.grpc) as client,
    ):
        yield RunningServer(server.grpc, server.http, server.metrics, repository, client)
        assert server.process.poll() is None, server.log()


def refusal_of(error: InferenceServerException) -> Refusal:
    return Refusal(str(error.status()).removeprefix("StatusCode."), error.message())


def text_tensors(texts: str | bytes | Sequence[str | bytes], **options: Any) -> dict[str, Any]:
    """TEXT and options, one row a text; a single value of an option goes to every row."""
    rows = [texts] if isinstance(texts, str | bytes) else list(texts)
    tensors: dict[str, Any] = {"TEXT": [[_encoded(text)] for text in rows]}
    for name, value in options.items():
        values = value if isinstance(value, list) else [value] * len(rows)
        tensors[name] = [[_encoded(each)] for each in values]
    return tensors


def infer_input(model: str, name: str, values: Any) -> grpcclient.InferInput:
    """An input of the declared type, or of the type of an array."""
    if isinstance(values, np.ndarray):
        datatype = next(key for key, dtype in _NUMPY.items() if values.dtype == dtype)
    else:
        datatype = _declared_datatype(model, name)
        values = np.array(values, dtype=_NUMPY[datatype])
    infer_input = grpcclient.InferInput(name, list(values.shape), datatype)
    infer_input.set_data_from_numpy(values)
    return infer_input


def json_input(name: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    datatype = _declared_datatype("chattts", name)
    return {"name": name, "shape": shape or [len(data), 1], "datatype": datatype, "data": data}


def _declared_datatype(model: str, name: str) -> str:
    (spec,) = (each for each in _SPECS[model].inputs if each.name == name)
    return "BYTES" if spec.dtype == "STRING" else spec.dtype


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


OPTION_NAMES = tuple(spec.name for spec in OPTIONS)
INPUT_NAMES = (TEXT.name, *OPTION_NAMES)
OUTPUT_NAMES = tuple(spec.name for spec in CHATTTS.outputs)
