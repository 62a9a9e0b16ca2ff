"""What the gateway answers: speech in OpenAI's form and in a plain one, lists, health, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.responses import Response

from chattts_triton.gateway.encoding import MEDIA_TYPES
from chattts_triton.gateway.errors import RETRY_AFTER_S, ApiError
from chattts_triton.gateway.models import OPENAI_MODELS
from chattts_triton.gateway.speaking import FINISH_REASON, MODE, SEED, WARNINGS, admit, speak
from chattts_triton.gateway.speech_options import SimpleSpeechRequest, SpeechRequest
from chattts_triton.gateway.state import state_of

router = APIRouter()


class ErrorDetail(BaseModel):
    """What went wrong: a stable `code` for programs, a message for people."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class VoiceEntry(BaseModel):
    """A voice by its name."""

    id: str
    name: str
    description: str
    language: str


class VoicesAnswer(BaseModel):
    """The voices that are known by name."""

    voices: list[VoiceEntry]


class ModelEntry(BaseModel):
    """A model by its name."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "chattts-triton"


class ModelsAnswer(BaseModel):
    """OpenAI's list of models."""

    object: str = "list"
    data: list[ModelEntry]


def _string_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorAnswer, "description": "An error in OpenAI's shape."}
}
_HEADERS = {
    SEED: _string_header("The seed that was given or drawn."),
    MODE: _string_header("How chunks were cut: `quality` or `low_latency`."),
    FINISH_REASON: _string_header("Of a file: `stop`, or `length` if it was cut off."),
    WARNINGS: _string_header("Of a file: codes with commas between them; left out if none."),
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
# OpenAPI 3.1 has no schema for the events of a stream.
_EVENTS: dict[str, Any] = {"text/event-stream": {}}


def _audio(
    *media_types: str, others: Mapping[str, Any] = MappingProxyType({})
) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {**dict.fromkeys(media_types, _BINARY), **others}
    return {200: {"description": "Audio.", "headers": _HEADERS, "content": content}, **_ERRORS}


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses=_audio(*MEDIA_TYPES.values(), others=_EVENTS),
    summary="A text as audio, in OpenAI's form",
    tags=["speech"],
)
async def create_speech(request: Request, body: Annotated[SpeechRequest, Body()]) -> Response:
    """Speaks a text; the whole file at once, its bytes as they are made, or events of them."""
    return await speak(request, body.speech(state_of(request).voices.triton_voice(body.voice)))


@router.post(
    "/api/tts",
    response_class=Response,
    responses=_audio(MEDIA_TYPES["wav"]),
    summary="A text as a WAV file",
    tags=["speech"],
)
async def create_wav(request: Request, body: Annotated[SimpleSpeechRequest, Body()]) -> Response:
    """Speaks a text; what web pages of ChatTTS call."""
    return await speak(request, body.speech())


@router.get("/v1/audio/voices", responses=_ERRORS, summary="Voices by name", tags=["lists"])
async def list_voices(request: Request, response: Response) -> VoicesAnswer:
    """The voices of the server's book, where the gateway was given it, and OpenAI's names."""
    response.headers.update((await admit(request)).headers)
    voices = state_of(request).voices.voices()
    return VoicesAnswer(
        voices=[
            VoiceEntry(
                id=voice.name,
                name=voice.name,
                description=voice.description,
                language=voice.language,
            )
            for voice in voices
        ]
    )


@router.get("/v1/models", responses=_ERRORS, summary="Models by name", tags=["lists"])
async def list_models(request: Request, response: Response) -> ModelsAnswer:
    """The models that are served, and OpenAI's names, which mean the first of them."""
    response.headers.update((await admit(request)).headers)
    names = (*state_of(request).settings.models, *OPENAI_MODELS)
    return ModelsAnswer(data=[ModelEntry(id=name) for name in dict.fromkeys(names)])


@router.get("/healthz", summary="Whether the gateway runs", tags=["health"])
async def healthz() -> dict[str, str]:
    """Asks nobody: an answer is all there is to it."""
    return {"status": "ok"}


@router.get("/readyz", responses=_ERRORS, summary="Whether speech can be made", tags=["health"])
async def readyz(request: Request) -> dict[str, str]:
    """Asks Triton whether the model is loaded; one of several is enough."""
    state = state_of(request)
    if await state.pool.is_ready():
        return {"status": "ready"}
    raise ApiError(
        503,
        "upstream_unavailable",
        f"no Triton has the model {state.settings.models[0]} ready",
        {"Retry-After": str(RETRY_AFTER_S)},
    )


@router.get("/metrics", response_class=Response, summary="For Prometheus", tags=["health"])
async def metrics(request: Request) -> Response:
    """The metrics of this gateway; those of the models are at Triton's own `/metrics`."""
    state = state_of(request)
    state.metrics.upstreams_up.set(state.pool.num_up)
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
