"""The two clients: what is left of them once requests, answers and errors are plain functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

import grpc  # type: ignore[import-untyped]
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2_grpc

from chattts_client._answer import parse_response
from chattts_client._audio import Audio
from chattts_client._chunks import AudioChunk, StreamMode
from chattts_client._errors import ChatTTSClientError, translated_errors
from chattts_client._options import OptionArguments, SynthesisOptions
from chattts_client._stream import async_chunks, chunks
from chattts_client._wire import (
    CHANNEL_ARGS,
    DEFAULT_TIMEOUT_S,
    checked_timeout,
    infer_arguments,
    stream_request,
)

DEFAULT_URL = "127.0.0.1:8001"
READY_TIMEOUT_S = 5.0


class _Connection:
    """What both clients know of their server, and the connection of their kind to it."""

    _triton_client: ClassVar[Callable[..., Any]]
    _open_channel: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        model_name: str = "chattts",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.url = url
        self.model_name = model_name
        self.timeout_s = checked_timeout(timeout_s)
        self._triton = self._triton_client(url, channel_args=CHANNEL_ARGS)
        # Shares its connection with the one above, which has the same arguments.
        self._channel = self._open_channel(url, options=CHANNEL_ARGS)
        self._streams = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def _infer_arguments(
        self, texts: Sequence[str], timeout_s: float | None, options: OptionArguments
    ) -> dict[str, Any]:
        return infer_arguments(
            self.model_name,
            texts,
            SynthesisOptions(**options),
            self.timeout_s if timeout_s is None else timeout_s,
        )

    def _stream_arguments(
        self, text: str, mode: str | None, timeout_s: float | None, options: OptionArguments
    ) -> tuple[Any, str, float]:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        request = stream_request(self.model_name, text, SynthesisOptions(**options), mode, limit_s)
        return request, self.url, limit_s


class ChatTTSClient(_Connection):
    """A connection to a server, for any number of threads; close it, or use it as a context.

    Args:
        url: HOST:PORT of the server's gRPC endpoint.
        model_name: The model that is called.
        timeout_s: Of every call that does not set its own.
    """

    _triton_client = tritonclient.grpc.InferenceServerClient
    _open_channel = staticmethod(grpc.insecure_channel)

    def synthesize(
        self, text: str, *, timeout_s: float | None = None, **options: Unpack[OptionArguments]
    ) -> Audio:
        """The audio of one text; `OptionArguments` describes the options.

        Raises:
            ChatTTSClientError: The call failed; see the classes below it.
        """
        return self.synthesize_batch([text], timeout_s=timeout_s, **options)[0]

    def synthesize_batch(
        self,
        texts: Sequence[str],
        *,
        timeout_s: float | None = None,
        **options: Unpack[OptionArguments],
    ) -> list[Audio]:
        """The audio of each text, in one call that succeeds or fails as a whole.

        An option is one value for every text, or a list with one value for each.

        Raises:
            ChatTTSClientError: The call failed; see the classes below it.
        """
        arguments = self._infer_arguments(texts, timeout_s, options)
        with translated_errors(self.url, arguments["client_timeout"]):
            result = self._triton.infer(**arguments)
        return parse_response(result, len(texts))

    def stream(
        self,
        text: str,
        *,
        mode: StreamMode | None = None,
        timeout_s: float | None = None,
        **options: Unpack[OptionArguments],
    ) -> Generator[AudioChunk, None, None]:
        """The audio of one text in chunks, each as soon as it is made.

        The call begins with the first `next`. It is cancelled when the generator is closed or
        dropped before its last chunk, so that the server stops working on it.

        Args:
            text: One text.
            mode: "quality" gives the samples of `synthesize`, "low_latency" begins earlier;
                "auto", or None, leaves the choice to the server.
            timeout_s: Of the whole stream, the time between two `next` included.
            options: As for `synthesize`.

        Raises:
            InvalidRequestError: Something cannot be sent; raised here, all else by `next`.
            ChatTTSClientError: The call failed; the chunks before it are good, the audio is cut.
        """
        return chunks(self._streams, *self._stream_arguments(text, mode, timeout_s, options))

    def is_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Whether the server can be reached and has the model loaded."""
        checked_timeout(timeout_s)
        try:
            with translated_errors(self.url, timeout_s):
                ready = self._triton.is_model_ready(self.model_name, client_timeout=timeout_s)
                return bool(ready)
        except ChatTTSClientError:
            return False

    def close(self) -> None:
        """End the connection; calls that are open fail."""
        self._channel.close()
        self._triton.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncChatTTSClient(_Connection):
    """`ChatTTSClient` for asyncio; create it inside the event loop that uses it.

    Cancelling a task that waits for a call cancels the call.
    """

    _triton_client = tritonclient.grpc.aio.InferenceServerClient
    _open_channel = staticmethod(grpc.aio.insecure_channel)

    async def synthesize(
        self, text: str, *, timeout_s: float | None = None, **options: Unpack[OptionArguments]
    ) -> Audio:
        """As `ChatTTSClient.synthesize`."""
        return (await self.synthesize_batch([text], timeout_s=timeout_s, **options))[0]

    async def synthesize_batch(
        self,
        texts: Sequence[str],
        *,
        timeout_s: float | None = None,
        **options: Unpack[OptionArguments],
    ) -> list[Audio]:
        """As `ChatTTSClient.synthesize_batch`."""
        arguments = self._infer_arguments(texts, timeout_s, options)
        with translated_errors(self.url, arguments["client_timeout"]):
            result = await self._triton.infer(**arguments)
        return parse_response(result, len(texts))

    def stream(
        self,
        text: str,
        *,
        mode: StreamMode | None = None,
        timeout_s: float | None = None,
        **options: Unpack[OptionArguments],
    ) -> AsyncGenerator[AudioChunk, None]:
        """As `ChatTTSClient.stream`; cancelling the task that reads cancels the call as well.

        A loop that is left early closes the generator at once only under
        `contextlib.aclosing`; otherwise that is up to the event loop.
        """
        return async_chunks(self._streams, *self._stream_arguments(text, mode, timeout_s, options))

    async def is_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """As `ChatTTSClient.is_ready`."""
        checked_timeout(timeout_s)
        try:
            with translated_errors(self.url, timeout_s):
                ready = await self._triton.is_model_ready(self.model_name, client_timeout=timeout_s)
                return bool(ready)
        except ChatTTSClientError:
            return False

    async def close(self) -> None:
        """End the connection; calls that are open fail."""
        await self._channel.close()
        await self._triton.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
