"""The two clients: what is left of them once requests, answers and errors are plain functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

import tritonclient.grpc
import tritonclient.grpc.aio

from chattts_client._audio import Audio
from chattts_client._errors import ChatTTSClientError, translated_errors
from chattts_client._options import OptionArguments, SynthesisOptions
from chattts_client._wire import (
    CHANNEL_ARGS,
    DEFAULT_TIMEOUT_S,
    checked_timeout,
    infer_arguments,
    parse_response,
)

DEFAULT_URL = "127.0.0.1:8001"
READY_TIMEOUT_S = 5.0


class _Connection:
    """What both clients know of their server, and the connection of their kind to it."""

    _triton_client: ClassVar[Callable[..., Any]]

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

    def _infer_arguments(
        self, texts: Sequence[str], timeout_s: float | None, options: OptionArguments
    ) -> dict[str, Any]:
        return infer_arguments(
            self.model_name,
            texts,
            SynthesisOptions(**options),
            self.timeout_s if timeout_s is None else timeout_s,
        )


class ChatTTSClient(_Connection):
    """A connection to a server, for any number of threads; close it, or use it as a context.

    Args:
        url: HOST:PORT of the server's gRPC endpoint.
        model_name: The model that is called.
        timeout_s: Of every call that does not set its own.
    """

    _triton_client = tritonclient.grpc.InferenceServerClient

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
