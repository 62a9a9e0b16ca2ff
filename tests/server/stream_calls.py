"""Streams of the real server by plain tritonclient, as foreign clients open them."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tritonclient.grpc as grpcclient
from triton_calls import (
    TIMEOUT_S,
    Refusal,
    RunningServer,
    infer_input,
    refusal_of,
    text_tensors,
)
from tritonclient.utils import InferenceServerException

from chattts_triton.errors import ChatTTSError
from chattts_triton.serving.stream import CALLER_CLOSES
from chattts_triton.tensors import CHATTTS_STREAM

MODEL = CHATTTS_STREAM.name
# Has Triton send an error of a stream as the call's status, with its code.
ERROR_TYPES = {kind.error_type for kind in ChatTTSError.__subclasses__()}


def stream_refusal(error: InferenceServerException) -> Refusal:
    """The error that a stream ends with; its status is our type of it, or that of the call."""
    error_type, _, text = error.message().partition(": ")
    if error.status() is None and error_type in ERROR_TYPES:
        return Refusal(error_type, text)
    return refusal_of(error)


@dataclass(frozen=True)
class Chunk:
    """One response."""

    samples: np.ndarray  # (S,) float32
    pcm16: np.ndarray  # (S,) int16
    index: int
    seed: int
    mode: str
    finish_reason: str
    is_last: bool
    at_s: float  # time.monotonic() of its arrival


class StreamCall:
    """One open stream; leaving the context cancels what is left of it."""

    def __init__(
        self,
        server: RunningServer,
        text: str,
        *,
        model: str = MODEL,
        parameters: Mapping[str, Any] | None = None,
        timeout_us: int | None = None,
        request_id: str = "",
        **options: Any,
    ) -> None:
        self._closes = bool((parameters or {}).get(CALLER_CLOSES))
        self._responses: queue.Queue[tuple[float, Any, Any]] = queue.Queue()
        self._client = grpcclient.InferenceServerClient(server.grpc_url)
        self._client.start_stream(
            lambda result, error: self._responses.put((time.monotonic(), result, error))
        )
        self.start_s = time.monotonic()
        self._client.async_stream_infer(
            model,
            [
                infer_input(MODEL, name, values)
                for name, values in text_tensors(text, **options).items()
            ],
            parameters=dict(parameters or {}),
            timeout=timeout_us,
            request_id=request_id,
            enable_empty_final_response=True,
        )

    def next(self) -> Chunk | Refusal:
        """The next response, or the error that the stream ended with."""
        at_s, result, error = self._responses.get(timeout=TIMEOUT_S)
        if error is not None:
            return stream_refusal(error)
        response = result.get_response()
        outputs = {output.name: result.as_numpy(output.name)[0] for output in response.outputs}
        return Chunk(
            samples=outputs["AUDIO"],
            pcm16=outputs["PCM16"],
            index=int(outputs["CHUNK_INDEX"][0]),
            seed=int(outputs["SEED_USED"][0]),
            mode=outputs["MODE_USED"][0].decode(),
            finish_reason=outputs["FINISH_REASON"][0].decode(),
            is_last=response.parameters["triton_final_response"].bool_param,
            at_s=at_s,
        )

    def chunk(self) -> Chunk:
        """The next response of a stream that goes well."""
        chunk = self.next()
        assert isinstance(chunk, Chunk), chunk
        return chunk

    def chunks(self) -> list[Chunk]:
        """All that is left of a stream that goes well."""
        return list(self._rest())

    def error(self) -> Refusal:
        """The error that a stream ends with, after any number of chunks."""
        while True:
            if isinstance(response := self.next(), Refusal):
                return response
            assert not response.is_last, "the stream ended well"

    def outcome(self) -> list[Chunk] | Refusal:
        """All that is left of a stream, or the error that it ends with; nothing may follow."""
        chunks: list[Chunk] = []
        while not chunks or not chunks[-1].finish_reason:
            if isinstance(response := self.next(), Refusal):
                chunks.clear()
                break
            chunks.append(response)
        # Waits for whatever else would come, unless the server is told that the caller ends it.
        self._client.stop_stream(cancel_requests=self._closes)
        while not self._responses.empty():
            _, result, error = self._responses.get()
            is_own = self._closes and result is None and "CANCELLED" in str(error.status())
            assert is_own, "the stream went on behind its end"
        return chunks or response

    def cancel(self) -> None:
        """Go away."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def _rest(self) -> Iterator[Chunk]:
        while True:
            chunk = self.chunk()
            yield chunk
            if chunk.is_last:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def stream(server: RunningServer, text: str, **arguments: Any) -> list[Chunk]:
    """All chunks of a stream that goes well."""
    with StreamCall(server, text, **arguments) as call:
        return call.chunks()


def stream_error(server: RunningServer, text: str, **arguments: Any) -> Refusal:
    """The error of a stream that must fail."""
    with StreamCall(server, text, **arguments) as call:
        return call.error()


def samples_of(chunks: list[Chunk]) -> np.ndarray:
    return np.concatenate([chunk.samples for chunk in chunks])
