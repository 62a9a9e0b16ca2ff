"""`WS /ws/tts`: utterances of one connection, spoken one after another while they are made.

Two tasks share a session: one reads what the client asks for, the other speaks. Both end with the
connection, and what is being spoken is cancelled at Triton.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket
from starlette.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from chattts_client import ChatTTSClientError
from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.errors import shorten
from chattts_triton.gateway.admission import RequestFacts
from chattts_triton.gateway.errors import ApiError, api_error
from chattts_triton.gateway.models import triton_model
from chattts_triton.gateway.request_scope import request_id_of
from chattts_triton.gateway.sentences import SentenceBuffer
from chattts_triton.gateway.speech_options import VoiceOptions
from chattts_triton.gateway.state import GatewayState, state_of
from chattts_triton.gateway.triton_pool import SpeechStream
from chattts_triton.gateway.websocket_messages import (
    Begin,
    Cancel,
    End,
    Message,
    Piece,
    Speak,
    identifier_in,
    parse_message,
)

LOGGER = logging.getLogger(__name__)

PATH = "/ws/tts"
MAX_UTTERANCES = 8  # of a connection that are not over
router = APIRouter()


@router.websocket(PATH)
async def speak_on_websocket(websocket: WebSocket) -> None:
    """Let a client in, and speak for it until it goes."""
    state = state_of(websocket)
    try:
        check_origin(websocket, state.settings.cors_origins)
        (await state.admission.admit(_facts(websocket, None))).release()
    except ApiError as error:
        state.metrics.refusals.labels(error.code).inc()
        await websocket.send_denial_response(
            JSONResponse(error.body(), error.status, error.headers)
        )
        return
    await websocket.accept()
    started_s = time.monotonic()
    session = Session(websocket, state)
    with state.metrics.websockets_open.track_inprogress():
        await session.run()
    LOGGER.info(
        "%s: WEBSOCKET %s: %d utterances in %.3f s",
        *(request_id_of(websocket.headers), PATH, session.num_utterances),
        time.monotonic() - started_s,
    )


def check_origin(websocket: WebSocket, allowed: Sequence[str]) -> None:
    """Refuse pages of other origins, which a browser would let through: CORS is for HTTP alone.

    Raises:
        ApiError: The page is of another origin than the gateway, and not of `allowed`.
    """
    origin = websocket.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != websocket.headers.get("host"):
        message = f"Origin: got {shorten(origin)}, wanted the gateway's own or one of --cors-origin"
        raise ApiError(403, "origin_not_allowed", message)


class Utterance:
    """What is to be spoken in one voice, part by part.

    Args:
        name: Its id.
        options: Of all its parts.
        max_characters: Of its text.
    """

    def __init__(self, name: str, options: VoiceOptions, max_characters: int) -> None:
        self.name = name
        self.options = options
        self.arrived_s = time.monotonic()
        self.is_cancelled = False
        self.task: asyncio.Task[None] | None = None
        self._is_whole = False
        self._num_characters = 0
        self._max_characters = max_characters
        self._buffer = SentenceBuffer()
        self._parts: asyncio.Queue[str | ApiError | None] = asyncio.Queue()

    def speak(self, text: str) -> None:
        """Take a whole text, which Triton cuts."""
        if self._take(text):
            self._parts.put_nowait(text)
            self._finish()

    def feed(self, piece: str) -> None:
        """Take a piece of the text, which is cut into sentences here."""
        if self._take(piece):
            for sentence in self._buffer.feed(piece):
                self._parts.put_nowait(sentence)

    def end(self) -> None:
        """Take the end of a text that came in pieces."""
        self._refuse_if_whole()
        for sentence in self._buffer.finish():
            self._parts.put_nowait(sentence)
        self._finish()

    async def next_part(self, timeout_s: float) -> str | None:
        """The next part, None at the end.

        Raises:
            ApiError: The text has become too long, or nothing more has come for so long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                part = await self._parts.get()
        except TimeoutError:
            message = f"text: nothing more, nor its end, in {timeout_s:g} s"
            raise ApiError(408, "text_timeout", message) from None
        if isinstance(part, ApiError):
            raise part
        return part

    def _take(self, text: str) -> bool:
        """Whether there is room for it; if not, that is the end of the utterance, as an error."""
        self._refuse_if_whole()
        self._num_characters += len(text)
        if self._num_characters <= self._max_characters:
            return True
        wanted = f"at most {self._max_characters}"
        message = f"text: got {self._num_characters} characters, wanted {wanted}"
        self._parts.put_nowait(ApiError(400, "text_too_long", message, param="text"))
        self._is_whole = True
        return False

    def _finish(self) -> None:
        self._is_whole = True
        self._parts.put_nowait(None)

    def _refuse_if_whole(self) -> None:
        if self._is_whole:
            message = f"id: got {self.name!r}, wanted an utterance whose text is not whole"
            raise ApiError(400, "invalid_value", message, param="id")


class Session:
    """One connection that was let in.

    Args:
        websocket: Accepted.
        state: Of the gateway.
    """

    def __init__(self, websocket: WebSocket, state: GatewayState) -> None:
        self._websocket = websocket
        self._state = state
        self._open: dict[str, Utterance] = {}
        self._waiting: asyncio.Queue[Utterance] = asyncio.Queue()
        self._sending = asyncio.Lock()
        self.num_utterances = 0

    async def run(self) -> None:
        """Read and speak until the client goes, or takes nothing any more."""
        tasks = [asyncio.create_task(self._read_all()), asyncio.create_task(self._speak_all())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_speaking = bool(self._open)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                self._note_end(outcome, was_speaking=was_speaking)

    def _note_end(self, outcome: BaseException | None, *, was_speaking: bool) -> None:
        match outcome:
            case WebSocketDisconnect():
                self._state.metrics.disconnects.inc(was_speaking)
            case TimeoutError():
                self._state.metrics.broken_streams.inc()
                LOGGER.warning("%s: dropped: the client takes nothing", PATH)
            case asyncio.CancelledError() | None:
                pass
            case _:
                LOGGER.error("%s: internal error", PATH, exc_info=outcome)

    async def _read_all(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1006))
            text = message.get("text")
            try:
                if text is None:
                    raise ApiError(400, "invalid_json", "message: got bytes, wanted JSON text")
                await self._take(parse_message(text))
            except ApiError as error:
                await self._tell_error(identifier_in(text or ""), error)

    async def _take(self, message: Message) -> None:
        if isinstance(message, Speak | Begin):
            self._begin(message)
            return
        utterance = self._open.get(message.id)
        if utterance is None:
            wanted = "that of an utterance that is not over"
            text = f"id: got {message.id!r}, wanted {wanted}"
            raise ApiError(400, "invalid_value", text, param="id")
        match message:
            case Piece():
                utterance.feed(message.text)
            case End():
                utterance.end()
            case Cancel():
                await self._cancel(utterance)

    def _begin(self, message: Speak | Begin) -> None:
        if message.id in self._open:
            text = f"id: got {message.id!r}, wanted one that no other utterance has"
            raise ApiError(400, "invalid_value", text, param="id")
        if len(self._open) >= MAX_UTTERANCES:
            text = f"{MAX_UTTERANCES} utterances wait or are spoken"
            raise ApiError(429, "too_many_utterances", text)
        triton_model(message.model, self._state.settings.models)
        utterance = Utterance(message.id, message, self._state.settings.max_characters)
        self._open[message.id] = utterance
        self._waiting.put_nowait(utterance)
        self.num_utterances += 1
        if isinstance(message, Speak):
            utterance.speak(message.text)

    async def _cancel(self, utterance: Utterance) -> None:
        if utterance.is_cancelled:
            return
        utterance.is_cancelled = True
        if utterance.task is not None:
            utterance.task.cancel()  # who waits for it tells the client
        else:
            del self._open[utterance.name]
            await self._tell("cancelled", utterance)

    async def _speak_all(self) -> None:
        while True:
            utterance = await self._waiting.get()
            if utterance.is_cancelled:
                continue
            utterance.task = asyncio.create_task(self._speak(utterance))
            try:
                await utterance.task
            except asyncio.CancelledError:
                if not utterance.is_cancelled or _is_cancelled():
                    raise
                await self._tell("cancelled", utterance)
            except (ApiError, ChatTTSClientError) as error:
                told = error if isinstance(error, ApiError) else api_error(error)
                await self._tell_error(utterance.name, told)
            finally:
                del self._open[utterance.name]

    async def _speak(self, utterance: Utterance) -> None:
        seed: int | None = None
        finish_reason = "stop"
        duration_s = 0.0
        warnings: dict[str, None] = {}
        while (part := await self._next_part(utterance)) is not None:
            async with self._stream(utterance, part, seed) as stream:
                if seed is None:
                    seed = stream.first.seed
                    await self._tell_started(utterance, stream)
                async for chunk in stream:
                    duration_s += chunk.duration_s
                    self._state.metrics.audio_s.inc(chunk.duration_s)
                    if len(chunk.samples):
                        await self._send(chunk.pcm16_bytes())
                    warnings |= dict.fromkeys(chunk.warnings)
                    if chunk.finish_reason == "length":
                        finish_reason = "length"
        if seed is None:
            message = "text: got nothing to speak, wanted letters, characters or digits"
            raise ApiError(400, "invalid_value", message, param="text")
        facts = {"finish_reason": finish_reason, "seed": seed, "duration_s": round(duration_s, 6)}
        await self._tell("finished", utterance, **facts, warnings=list(warnings))

    async def _next_part(self, utterance: Utterance) -> str | None:
        return await utterance.next_part(self._state.settings.read_timeout_s)

    @asynccontextmanager
    async def _stream(
        self, utterance: Utterance, text: str, seed: int | None
    ) -> AsyncIterator[SpeechStream]:
        """Triton's stream of one part; `seed` is that of the parts before it."""
        async with AsyncExitStack() as stack:
            admitted = await self._state.admission.admit(_facts(self._websocket, text))
            stack.callback(admitted.release)
            asked = utterance.options
            options = asked.arguments(self._state.voices.triton_voice(asked.voice))
            if seed is not None:
                options["seed"] = seed
            model = triton_model(asked.model, self._state.settings.models)
            mode = asked.mode or "low_latency"
            stream = await self._state.pool.open(model, admitted.text or "", mode, options)
            stack.push_async_callback(stream.aclose)
            yield stream

    async def _tell_started(self, utterance: Utterance, stream: SpeechStream) -> None:
        waited_s = time.monotonic() - utterance.arrived_s
        self._state.metrics.time_to_first_audio_s.observe(waited_s)
        await self._tell(
            "started",
            utterance,
            seed=stream.first.seed,
            mode=stream.first.mode,
            sample_rate=SAMPLE_RATE_HZ,
        )

    async def _tell(self, kind: str, utterance: Utterance, **facts: object) -> None:
        await self._send(json.dumps({"type": kind, "id": utterance.name, **facts}))

    async def _tell_error(self, name: str | None, error: ApiError) -> None:
        self._state.metrics.refusals.labels(error.code).inc()
        content: dict[str, object] = {"type": "error", "id": name, **error.body()}
        if retry_after := error.headers.get("Retry-After"):
            content["retry_after_s"] = int(retry_after)
        await self._send(json.dumps(content, ensure_ascii=False))

    async def _send(self, message: str | bytes) -> None:
        async with self._sending, asyncio.timeout(self._state.settings.write_timeout_s):
            if isinstance(message, str):
                await self._websocket.send_text(message)
            else:
                await self._websocket.send_bytes(message)


def _facts(websocket: WebSocket, text: str | None) -> RequestFacts:
    return RequestFacts(
        method="WEBSOCKET",
        path=PATH,
        headers=websocket.headers,
        client_address=websocket.client.host if websocket.client else "",
        text=text,
        num_characters=len(text or ""),
    )


def _is_cancelled() -> bool:
    """Whether it is this task itself that is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
