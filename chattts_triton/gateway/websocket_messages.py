"""The messages of `WS /ws/tts`, checked; docs/protocol.md has them for people."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chattts_triton.errors import shorten
from chattts_triton.gateway.errors import ApiError, described
from chattts_triton.gateway.speech_options import VoiceOptions

Identifier = Annotated[str, Field(min_length=1, max_length=64, description="Of an utterance.")]
Text = Annotated[str, Field(min_length=1, description="What is to be spoken.")]


class _OfUtterance(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    id: Identifier


class Speak(VoiceOptions):
    """A whole utterance."""

    type: Literal["speak"]
    id: Identifier
    text: Text


class Begin(VoiceOptions):
    """An utterance whose text comes in pieces."""

    type: Literal["begin"]
    id: Identifier


class Piece(_OfUtterance):
    """More of its text."""

    type: Literal["text"]
    text: Text


class End(_OfUtterance):
    """Its text is whole."""

    type: Literal["end"]


class Cancel(_OfUtterance):
    """It is wanted no more."""

    type: Literal["cancel"]


Message = Speak | Begin | Piece | End | Cancel
_KINDS: dict[str, type[Message]] = {
    "speak": Speak,
    "begin": Begin,
    "text": Piece,
    "end": End,
    "cancel": Cancel,
}


def parse_message(text: str) -> Message:
    """A client's message.

    Raises:
        ApiError: It is none; the message of the error names the field.
    """
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"message: got no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ApiError(400, "invalid_json", f"message: got {shorten(content)}, wanted an object")
    name = content.get("type")
    if not isinstance(name, str) or name not in _KINDS:
        wanted = ", ".join(_KINDS)
        message = f"type: got {shorten(name)}, wanted one of {wanted}"
        raise ApiError(400, "invalid_value", message, param="type")
    try:
        return _KINDS[name].model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0])
        raise ApiError(400, *described(param, dict(first)), param=param) from None


def identifier_in(text: str) -> str | None:
    """The id in a message that is refused, so that its sender knows which it was."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = content.get("id") if isinstance(content, dict) else None
    return name if isinstance(name, str) and len(name) <= 64 else None
