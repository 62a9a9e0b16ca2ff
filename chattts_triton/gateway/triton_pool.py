"""Several Tritons as one: the least busy gets the next request, and one that is down is left out.

A request goes elsewhere once, and only while nothing of it has been sent: a stream is handed over
together with its first chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from chattts_client import (
    AsyncChatTTSClient,
    AudioChunk,
    ChatTTSClientError,
    OptionArguments,
    OverloadedError,
    ServerUnreachableError,
    StreamMode,
)

LOGGER = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
READY_TIMEOUT_S = 2.0


class Upstream:
    """One Triton, and what is known of it.

    Attributes:
        url: HOST:PORT of its gRPC endpoint.
        num_outstanding: Streams that are open.
        is_up: Whether the last that was heard of it was good.
    """

    def __init__(self, url: str, models: tuple[str, ...], timeout_s: float) -> None:
        self.url = url
        self.num_outstanding = 0
        self.is_up = True
        self._clients = {
            model: AsyncChatTTSClient(url, model_name=model, timeout_s=timeout_s)
            for model in models
        }

    def stream(
        self, model: str, text: str, mode: StreamMode | None, options: OptionArguments
    ) -> AsyncGenerator[AudioChunk, None]:
        """A stream that begins with its first `anext`."""
        return self._clients[model].stream(text, mode=mode, **options)

    async def is_ready(self, model: str) -> bool:
        """Whether it has the model loaded."""
        return await self._clients[model].is_ready(timeout_s=READY_TIMEOUT_S)

    async def close(self) -> None:
        """End its connections."""
        for client in self._clients.values():
            await client.close()


class SpeechStream:
    """The chunks of one text, the first of which is there; for one reader.

    Attributes:
        first: The first chunk; iterating begins with it.
    """

    def __init__(
        self,
        upstream: Upstream,
        chunks: AsyncGenerator[AudioChunk, None],
        first: AudioChunk,
        on_error: Callable[[Upstream, ChatTTSClientError], None],
    ) -> None:
        self.first = first
        self._upstream = upstream
        self._chunks = chunks
        self._on_error = on_error
        self._is_begun = False
        self._is_open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioChunk:
        """The next chunk.

        Raises:
            ChatTTSClientError: The stream broke; the chunks before it are good, the audio is cut.
        """
        if not self._is_begun:
            self._is_begun = True
            return self.first
        try:
            return await anext(self._chunks)
        except ChatTTSClientError as error:
            self._on_error(self._upstream, error)
            raise

    async def aclose(self) -> None:
        """End the stream; Triton stops working on it. Nothing where it is closed."""
        if self._is_open:
            self._is_open = False
            self._upstream.num_outstanding -= 1
            await self._chunks.aclose()


class TritonPool:
    """The Tritons of a gateway; a context of the event loop that uses it.

    Args:
        urls: HOST:PORT of each.
        models: The models that may be called.
        timeout_s: Of a stream.
        probe_interval_s: Between two looks at one that is down.
        on_error: Is told of each error of an upstream, also of those that another makes up for.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        models: tuple[str, ...],
        *,
        timeout_s: float,
        probe_interval_s: float,
        on_error: Callable[[ChatTTSClientError], None] = lambda error: None,
    ) -> None:
        self._urls = urls
        self._models = models
        self._timeout_s = timeout_s
        self._probe_interval_s = probe_interval_s
        self._on_error = on_error
        self._probe: asyncio.Task[None] | None = None
        self._next = 0
        self.upstreams: list[Upstream] = []

    async def __aenter__(self) -> Self:
        self.upstreams = [Upstream(url, self._models, self._timeout_s) for url in self._urls]
        self._probe = asyncio.create_task(self._probe_down())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        for upstream in self.upstreams:
            await upstream.close()

    @property
    def num_up(self) -> int:
        """How many Tritons are not known to be down."""
        return sum(upstream.is_up for upstream in self.upstreams)

    async def open(
        self, model: str, text: str, mode: StreamMode | None, options: OptionArguments
    ) -> SpeechStream:
        """A stream whose first chunk is there; the caller closes it.

        Raises:
            ChatTTSClientError: It could not be begun, nor at another Triton where that could help.
        """
        candidates = self._candidates()[:MAX_ATTEMPTS]
        for upstream in candidates[:-1]:
            with contextlib.suppress(ServerUnreachableError, OverloadedError):
                return await self._open_at(upstream, model, text, mode, options)
        return await self._open_at(candidates[-1], model, text, mode, options)

    async def is_ready(self, model: str | None = None) -> bool:
        """Whether any Triton has the model loaded, by default the first of the models."""
        name = model or self._models[0]
        checks = [asyncio.create_task(each.is_ready(name)) for each in self.upstreams]
        try:
            for check in asyncio.as_completed(checks):
                if await check:
                    return True
            return False
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    def _candidates(self) -> list[Upstream]:
        """Those that are up before those that are not, the least busy first, equal ones in turn."""
        self._next = (self._next + 1) % len(self.upstreams)
        turned = self.upstreams[self._next :] + self.upstreams[: self._next]
        # One that is down may be back, so with nobody else it is tried.
        return sorted(turned, key=lambda each: (not each.is_up, each.num_outstanding))

    async def _open_at(
        self,
        upstream: Upstream,
        model: str,
        text: str,
        mode: StreamMode | None,
        options: OptionArguments,
    ) -> SpeechStream:
        chunks = upstream.stream(model, text, mode, options)
        upstream.num_outstanding += 1
        try:
            first = await anext(chunks)
        except BaseException as error:
            upstream.num_outstanding -= 1
            await chunks.aclose()
            if isinstance(error, ChatTTSClientError):
                self._note_error(upstream, error)
            raise
        self._note(upstream, is_up=True)
        return SpeechStream(upstream, chunks, first, self._note_error)

    def _note_error(self, upstream: Upstream, error: ChatTTSClientError) -> None:
        self._on_error(error)
        if isinstance(error, ServerUnreachableError):
            self._note(upstream, is_up=False)

    def _note(self, upstream: Upstream, *, is_up: bool) -> None:
        if upstream.is_up != is_up:
            LOGGER.warning("triton %s is %s", upstream.url, "up again" if is_up else "down")
            upstream.is_up = is_up

    async def _probe_down(self) -> None:
        while True:
            await asyncio.sleep(self._probe_interval_s)
            for upstream in self.upstreams:
                if not upstream.is_up and await upstream.is_ready(self._models[0]):
                    self._note(upstream, is_up=True)
