"""Audio that is sent while it is made. An answer that breaks off looks broken: it has no end."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chattts_client import AudioChunk, ChatTTSClientError
from chattts_triton.constants import SAMPLES_PER_CODE
from chattts_triton.gateway.disconnect import ClientDisconnected, until_disconnected
from chattts_triton.gateway.encoding import MEDIA_TYPES, Encoder
from chattts_triton.gateway.errors import api_error
from chattts_triton.gateway.speech_options import SpeechOptions
from chattts_triton.gateway.state import GatewayState
from chattts_triton.gateway.triton_pool import SpeechStream

LOGGER = logging.getLogger(__name__)


class StreamedAudio(Response):
    """The bytes of one file, each as soon as it is made.

    The body's last message is sent only after the last chunk. Without it the server closes the
    connection in the middle of the body, which every client takes for an error.

    Args:
        state: Of the gateway.
        stream: Of Triton; closed by whoever opened it.
        encoder: A new one.
        speech: What is spoken.
        headers: Of the answer.
        request_id: For the log.
    """

    def __init__(
        self,
        state: GatewayState,
        stream: SpeechStream,
        encoder: Encoder,
        speech: SpeechOptions,
        headers: Mapping[str, str],
        request_id: str,
    ) -> None:
        # Without a body to be counted, so without Content-Length.
        super().__init__(headers=headers, media_type=self._media_type(speech))
        del self.headers["content-length"]
        self._state = state
        self._stream = stream
        self._encoder = encoder
        self._speech = speech
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        try:
            await until_disconnected(receive, self._send_all(send))
        except ClientDisconnected:
            self._state.metrics.disconnects.inc()
        except TimeoutError:
            self._note_break("the client takes nothing")
        except ChatTTSClientError as error:
            self._note_break(str(error))

    def _media_type(self, speech: SpeechOptions) -> str:
        return MEDIA_TYPES[speech.response_format]

    async def _send_all(self, send: Send) -> None:
        await self._send(
            send,
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            },
        )
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if part:
                    await self._send(
                        send, {"type": "http.response.body", "body": part, "more_body": True}
                    )
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._state.settings.write_timeout_s):
            await send(message)

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self._stream:
            yield self._encoded(chunk)
        yield self._encoder.finish()

    def _encoded(self, chunk: AudioChunk) -> bytes:
        self._state.metrics.audio_s.inc(chunk.duration_s)
        return self._encoder.encode(pcm16_samples(chunk))

    def _note_break(self, reason: str) -> None:
        self._state.metrics.broken_streams.inc()
        LOGGER.warning("%s: broken off: %s", self._request_id, reason)


class StreamedEvents(StreamedAudio):
    """The same bytes as events of OpenAI's: `speech.audio.delta`, and `speech.audio.done`."""

    def _media_type(self, speech: SpeechOptions) -> str:
        return "text/event-stream"

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        num_samples = 0
        last = self._stream.first
        try:
            async for chunk in self._stream:
                last = chunk
                num_samples += len(chunk.samples)
                yield _delta(self._encoded(chunk))
        except ChatTTSClientError as error:
            yield _event({"type": "error", **api_error(error).body()})
            raise
        yield _delta(self._encoder.finish())
        yield _event(self._done(last, num_samples))

    def _done(self, last: AudioChunk, num_samples: int) -> dict[str, object]:
        num_steps = round(num_samples / SAMPLES_PER_CODE)
        num_characters = len(self._speech.text)
        return {
            "type": "speech.audio.done",
            "usage": {
                "input_tokens": num_characters,
                "output_tokens": num_steps,
                "total_tokens": num_characters + num_steps,
            },
            "seed": last.seed,
            "mode": last.mode,
            "finish_reason": last.finish_reason,
            "refined_text": last.refined_text,
            "warnings": list(last.warnings),
        }


def pcm16_samples(chunk: AudioChunk) -> NDArray[np.int16]:
    """(S,) int16: Triton's own conversion where it came."""
    return np.frombuffer(chunk.pcm16_bytes(), "<i2")


def _delta(part: bytes) -> bytes:
    """The event of some bytes of the file; none without bytes."""
    if not part:
        return b""
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})


def _event(content: Mapping[str, object]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
