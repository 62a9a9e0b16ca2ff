"""One stream from the first message to the last, so that audio is never lost in silence.

It is read from gRPC itself. Triton's client would have a thread push the messages, and keep what
its caller is too slow for; here the caller fetches each one, and gRPC's flow control does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from tritonclient.grpc import InferResult
from tritonclient.utils import InferenceServerException

from chattts_client._answer import parse_chunk
from chattts_client._chunks import AudioChunk
from chattts_client._errors import (
    GenerationError,
    RequestCancelledError,
    ServerUnreachableError,
    translated_errors,
)

_END = "end of the stream"  # what there must be before the timeout


def chunks(
    stub: Any, request: Any, url: str, timeout_s: float
) -> Generator[AudioChunk, None, None]:
    """Call the server, and cancel the call however the generator ends before its last chunk.

    Raises:
        ChatTTSClientError: The call failed, or what came is not the whole of a stream.
    """
    reader = ChunkReader(url)
    with translated_errors(url, timeout_s, _END):
        call = stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        try:
            for message in call:
                chunk = reader.read(message)
                yield chunk
                if chunk.is_last:
                    return
        finally:
            call.cancel()  # nothing where it has ended
    raise reader.missing_end()


async def async_chunks(
    stub: Any, request: Any, url: str, timeout_s: float
) -> AsyncGenerator[AudioChunk, None]:
    """As `chunks`, with gRPC's stub for asyncio."""
    reader = ChunkReader(url)
    with translated_errors(url, timeout_s, _END):
        call = stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        try:
            async for message in call:
                chunk = reader.read(message)
                yield chunk
                if chunk.is_last:
                    return
        except asyncio.CancelledError:
            # gRPC raises it as well where the client was closed and nobody cancelled the task.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise RequestCancelledError(f"{url}: the client was closed") from None
        finally:
            call.cancel()
    raise reader.missing_end()


class ChunkReader:
    """Reads the messages of one stream in their order.

    Args:
        url: The server's, for messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._next_index = 0
        self._num_samples = 0

    def read(self, message: Any) -> AudioChunk:
        """The chunk in one `ModelStreamInferResponse`.

        Raises:
            InferenceServerException: The message is an error; it has no status, but its text
                begins with its type. (With Triton's metadata `triton_grpc_error` the status of the
                call would be that of the error. Such a stream that is cancelled can crash
                tritonserver 2.51.)
            GenerationError: The chunk is not the one that is due, or breaks the contract.
        """
        if message.error_message:
            raise InferenceServerException(message.error_message)
        chunk = parse_chunk(InferResult(message.infer_response))
        if chunk.index != self._next_index:
            raise GenerationError(
                f"CHUNK_INDEX: got {chunk.index} from the server, wanted {self._next_index}"
            )
        self._next_index += 1
        self._num_samples += len(chunk.samples)
        if chunk.is_last and self._num_samples == 0:
            raise GenerationError("AUDIO: got no samples from the server in a whole stream")
        return chunk

    def missing_end(self) -> ServerUnreachableError:
        """The error of a stream that is over without its last chunk."""
        return ServerUnreachableError(
            f"{self._url}: the stream ended after {self._next_index} chunks, without the last one"
        )
