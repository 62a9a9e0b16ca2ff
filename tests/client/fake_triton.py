"""A gRPC server that answers as `chattts` and `chattts_stream` do, with noise of text and seed.

As a program it prints its port, and a line "arrived" at each call, which it then never answers; a
stream gets one chunk.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeAlias

import grpc
import numpy as np
from fake_streams import FakeCall, Step, chunks_of, silence
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

MAX_STEPS = 2048
WAIT_S = 20.0
Inputs: TypeAlias = dict[str, tuple[str, list[int], list[Any]]]
FIRST_DRAWN_SEED = 1000


def fake_samples(text: str, seed: int, max_steps: int = MAX_STEPS) -> np.ndarray:
    """(512 * T - 256,) float32, where T is one more than the characters of the text."""
    num_steps = min(max_steps, len(text) + 1)
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return generator.uniform(-1.0, 1.0, 512 * num_steps - 256).astype(np.float32)


def fake_pcm16(samples: np.ndarray) -> np.ndarray:
    """Unlike any rounding of the samples, so that a test can tell where a file came from."""
    return (samples * 1000).astype(np.int16)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers, refuses or hangs as it was told; remembers what it was asked."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[service_pb2.ModelInferRequest] = []
        self.is_model_loaded = True
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False
        self.change_outputs: Callable[[dict[str, np.ndarray]], None] = lambda outputs: None
        self.arrived = threading.Event()
        self.call_ended = threading.Event()
        self.on_arrival: Callable[[], None] = self.arrived.set
        self.stream_steps: Callable[[Inputs], Iterable[Step]] = self._whole_stream
        self.stream_cancelled = threading.Event()
        self.num_messages_sent = 0
        self._drawn_seeds = itertools.count(FIRST_DRAWN_SEED)

        unlimited = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._server = grpc.server(ThreadPoolExecutor(8), options=unlimited)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.url = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(grace=None).wait(WAIT_S)

    @property
    def last_inputs(self) -> Inputs:
        """Datatype, shape and values of each input of the last call."""
        return read_inputs(self.requests[-1])

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        is_ready = self.is_model_loaded and request.name == "chattts"
        return service_pb2.ModelReadyResponse(ready=is_ready)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        context.add_callback(self.call_ended.set)
        self.on_arrival()
        if self.refusal is not None:
            context.abort(*self.refusal)
        if self.hangs:
            self.call_ended.wait(WAIT_S)
        outputs = self._outputs(read_inputs(request))
        self.change_outputs(outputs)
        return response_of(outputs)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        request = next(requests)
        self.requests.append(request)
        call = FakeCall(context, self.stream_cancelled, self.call_ended)
        self.on_arrival()
        for message in call.run(self.stream_steps(read_inputs(request))):
            response = service_pb2.ModelStreamInferResponse()
            if isinstance(message, str):
                response.error_message = message
            else:
                response.infer_response.CopyFrom(response_of(message))
            yield response
            self.num_messages_sent += 1

    def _whole_stream(self, inputs: Inputs) -> list[Step]:
        outputs = self._outputs(inputs)
        mode = inputs["MODE"][2][0].decode() if "MODE" in inputs else "auto"
        return list(
            chunks_of(
                outputs["AUDIO"][0],
                seed=int(outputs["SEED_USED"].item()),
                mode="quality" if mode == "quality" else "low_latency",
                reason=outputs["FINISH_REASON"].item().decode(),
            )
        )

    def _outputs(self, inputs: Inputs) -> dict[str, Any]:
        texts = [text.decode() for text in inputs["TEXT"][2]]
        no_seeds = ("INT64", [], [-1] * len(texts))
        no_caps = ("INT32", [], [MAX_STEPS] * len(texts))
        seeds = [
            seed if seed >= 0 else next(self._drawn_seeds)
            for seed in inputs.get("SEED", no_seeds)[2]
        ]
        caps = inputs.get("MAX_NEW_TOKENS", no_caps)[2]
        rows = [fake_samples(*row) for row in zip(texts, seeds, caps, strict=True)]
        audio = np.zeros((len(rows), max(map(len, rows))), np.float32)
        for padded, samples in zip(audio, rows, strict=True):
            padded[: len(samples)] = samples
        reasons = [
            b"length" if len(text) + 1 > cap else b"stop"
            for text, cap in zip(texts, caps, strict=True)
        ]
        return {
            "AUDIO": audio,
            "AUDIO_LENGTH": np.array([[len(samples)] for samples in rows], np.int64),
            "SEED_USED": np.array(seeds, np.int64).reshape(-1, 1),
            "FINISH_REASON": np.array(reasons, np.object_).reshape(-1, 1),
            "PCM16": fake_pcm16(audio),
            "REFINED_TEXT": np.array([b""] * len(reasons), np.object_).reshape(-1, 1),
            "WARNINGS": np.array([b"[]"] * len(reasons), np.object_).reshape(-1, 1),
        }


def read_inputs(request: Any) -> Inputs:
    """Datatype, shape and flat values of each input of a call."""
    inputs: Inputs = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            values = deserialize_bytes_tensor(raw)
        else:
            values = np.frombuffer(raw, triton_to_np_dtype(tensor.datatype))
        inputs[tensor.name] = (tensor.datatype, list(tensor.shape), values.tolist())
    return inputs


def response_of(outputs: dict[str, np.ndarray]) -> Any:
    """The message of a call's outputs."""
    response = service_pb2.ModelInferResponse(model_name="chattts", model_version="1")
    for name, values in outputs.items():
        datatype = np_to_triton_dtype(values.dtype)
        response.outputs.add(name=name, datatype=datatype, shape=values.shape)
        raw = serialize_byte_tensor(values).item() if datatype == "BYTES" else values.tobytes()
        response.raw_output_contents.append(raw)
    return response


def main() -> None:
    with FakeTriton() as server:
        server.hangs = True
        server.stream_steps = lambda inputs: [silence(0), threading.Event()]
        server.on_arrival = lambda: print("arrived", flush=True)  # noqa: T201
        print(server.port, flush=True)  # noqa: T201
        server.call_ended.wait()


if __name__ == "__main__":
    main()
