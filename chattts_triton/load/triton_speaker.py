"""Triton as a speaker, by `chattts_client` alone: one call, or one stream, for each text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from chattts_client import (
    DEFAULT_TIMEOUT_S,
    AsyncChatTTSClient,
    ChatTTSClientError,
    OptionArguments,
    OverloadedError,
    StreamMode,
)
from chattts_triton.errors import ChatTTSError
from chattts_triton.load.take import Arrival, Failure, Speaker, Take


@dataclass(frozen=True)
class VoiceOptions:
    """What all requests of a load have in common; None leaves the choice to the server."""

    voice: str | None = None
    max_new_tokens: int | None = None

    def arguments(self, seed: int) -> OptionArguments:
        """The options of a call."""
        return {"seed": seed, "voice": self.voice, "max_new_tokens": self.max_new_tokens}


class TritonCalls:
    """Speaks by the model `chattts`: the whole audio in one answer."""

    def __init__(self, client: AsyncChatTTSClient, options: VoiceOptions) -> None:
        self._client = client
        self._options = options

    async def speak(self, text: str, seed: int) -> Take:
        """One call."""
        loop = asyncio.get_running_loop()
        try:
            audio = await self._client.synthesize(text, **self._options.arguments(seed))
        except ChatTTSClientError as error:
            return Take((), loop.time(), failure=failure_of(error))
        ended_s = loop.time()
        return Take((Arrival(ended_s, len(audio.samples)),), ended_s, audio.finish_reason)


class TritonStreams:
    """Speaks by the model `chattts_stream`; None as mode leaves it to the server."""

    def __init__(
        self, client: AsyncChatTTSClient, options: VoiceOptions, mode: StreamMode | None = None
    ) -> None:
        self._client = client
        self._options = options
        self._mode = mode

    async def speak(self, text: str, seed: int) -> Take:
        """One stream, read as fast as it comes."""
        loop = asyncio.get_running_loop()
        arrivals: list[Arrival] = []
        mode, finish_reason = "", ""
        try:
            arguments = self._options.arguments(seed)
            stream = self._client.stream(text, mode=self._mode, **arguments)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    arrivals.append(Arrival(loop.time(), len(chunk.samples)))
                    mode, finish_reason = chunk.mode, chunk.finish_reason or ""
        except ChatTTSClientError as error:
            return Take(tuple(arrivals), loop.time(), mode=mode, failure=failure_of(error))
        return Take(tuple(arrivals), arrivals[-1].at_s, finish_reason, mode)


def failure_of(error: ChatTTSClientError) -> Failure:
    """The error as a load counts it: only a full queue is a refusal."""
    return Failure(error.error_type, str(error), isinstance(error, OverloadedError))


@asynccontextmanager
async def triton_speaker(
    url: str,
    model_name: str,
    options: VoiceOptions,
    *,
    is_stream: bool,
    mode: StreamMode | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> AsyncIterator[Speaker]:
    """A speaker for the server at `url`, while the context lasts.

    Raises:
        ChatTTSError: There is no server, or it has no such model loaded.
    """
    async with AsyncChatTTSClient(url, model_name=model_name, timeout_s=timeout_s) as client:
        if not await client.is_ready():
            raise ChatTTSError(f"{url}: no server, or it has no model {model_name!r} loaded")
        if is_stream:
            yield TritonStreams(client, options, mode)
        else:
            yield TritonCalls(client, options)
