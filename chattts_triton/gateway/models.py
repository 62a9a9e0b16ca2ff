"""The models by the names that callers know them by."""

from __future__ import annotations

from chattts_triton.errors import shorten
from chattts_triton.gateway.errors import ApiError

# Applications that were written for OpenAI's API send these; they mean the first model.
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")


def triton_model(name: str, models: tuple[str, ...]) -> str:
    """The model of Triton that a caller means.

    Raises:
        ApiError: There is none of the name.
    """
    if name in models:
        return name
    if name in OPENAI_MODELS:
        return models[0]
    known = ", ".join((*models, *OPENAI_MODELS))
    message = f"model: got {shorten(name)}, wanted one of {known}"
    raise ApiError(404, "model_not_found", message, param="model")
