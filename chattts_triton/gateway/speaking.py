"""One request to speak, from its options to its answer; all routes of speech come here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from chattts_client import AudioChunk
from chattts_triton.gateway.admission import Admitted, RequestFacts
from chattts_triton.gateway.disconnect import until_disconnected
from chattts_triton.gateway.encoding import MEDIA_TYPES, Encoder, encoder_of
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.models import triton_model
from chattts_triton.gateway.request_scope import exit_stack_of
from chattts_triton.gateway.speech_options import SpeechOptions
from chattts_triton.gateway.speech_response import StreamedAudio, StreamedEvents, pcm16_samples
from chattts_triton.gateway.state import GatewayState, state_of
from chattts_triton.gateway.triton_pool import SpeechStream

SEED = "X-ChatTTS-Seed"
MODE = "X-ChatTTS-Mode"
FINISH_REASON = "X-ChatTTS-Finish-Reason"
WARNINGS = "X-ChatTTS-Warnings"


async def admit(request: Request, text: str | None = None) -> Admitted:
    """Ask admission about a request; what it holds is released when the request is over.

    Raises:
        ApiError: It is refused.
    """
    facts = RequestFacts(
        method=request.method,
        path=request.url.path,
        headers=request.headers,
        client_address=request.client.host if request.client else "",
        text=text,
        num_characters=len(text or ""),
    )
    admitted = await state_of(request).admission.admit(facts)
    exit_stack_of(request).callback(admitted.release)
    return admitted


async def speak(request: Request, speech: SpeechOptions) -> Response:
    """The answer to a request to speak, its first chunk or the whole of it being there.

    Raises:
        ApiError: It is refused.
        ChatTTSClientError: Triton failed, and nothing has been sent.
        ClientDisconnected: The client went away first.
    """
    state = state_of(request)
    model = triton_model(speech.model, state.settings.models)
    _check_length(speech.text, state.settings.max_characters)
    admitted = await admit(request, speech.text)
    speech = replace(speech, text=admitted.text or "")
    stream = await until_disconnected(request.receive, _open(state, model, speech))
    exit_stack_of(request).push_async_callback(stream.aclose)
    state.metrics.time_to_first_audio_s.observe(time.monotonic() - request.state.started_s)
    headers = {
        **admitted.headers,
        SEED: str(stream.first.seed),
        MODE: stream.first.mode,
    }
    if speech.delivery == "file":
        whole = await until_disconnected(request.receive, _whole(state, stream, speech))
        return whole.response(speech, headers)
    kind = StreamedEvents if speech.delivery == "sse" else StreamedAudio
    encoder = encoder_of(speech.response_format, is_streamed=True)
    return kind(state, stream, encoder, speech, headers, request.state.request_id)


async def _open(state: GatewayState, model: str, speech: SpeechOptions) -> SpeechStream:
    return await state.pool.open(model, speech.text, speech.mode, speech.options)


def _check_length(text: str, max_characters: int) -> None:
    if len(text) > max_characters:
        raise ApiError(
            400,
            "text_too_long",
            f"input: got {len(text)} characters, wanted at most {max_characters}",
            param="input",
        )


@dataclass(frozen=True)
class _WholeFile:
    content: bytes
    last: AudioChunk

    def response(self, speech: SpeechOptions, headers: Mapping[str, str]) -> Response:
        told = {**headers, FINISH_REASON: str(self.last.finish_reason)}
        if self.last.warnings:
            told[WARNINGS] = ",".join(self.last.warnings)
        return Response(self.content, headers=told, media_type=MEDIA_TYPES[speech.response_format])


async def _whole(state: GatewayState, stream: SpeechStream, speech: SpeechOptions) -> _WholeFile:
    encoder: Encoder = encoder_of(speech.response_format, is_streamed=False)
    parts = []
    last = stream.first
    async for chunk in stream:
        last = chunk
        state.metrics.audio_s.inc(chunk.duration_s)
        parts.append(encoder.encode(pcm16_samples(chunk)))
    parts.append(encoder.finish())
    await stream.aclose()
    return _WholeFile(b"".join(parts), last)
