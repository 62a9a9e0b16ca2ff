"""The errors of this project and the status each one has at every edge.

ChatTTSError
  InvalidRequestError        the caller can fix it: names the field, what came, what is wanted
  OverloadedError            the waiting queue is full; try again later
  RequestCancelledError      the caller went away
  DeadlineExceededError      the request's own timeout ran out
  GenerationError            the model failed on a valid request
  ModelLoadError             files of a checkpoint or an export are missing or wrong
  ServerStartError           tritonserver could not be started
"""

from __future__ import annotations

from typing import ClassVar


class ChatTTSError(Exception):
    """Base of every error that this project raises on purpose."""

    error_type: ClassVar[str] = "error"
    triton_code: ClassVar[str] = "INTERNAL"  # name of a `pb_utils.TritonError` code
    http_status: ClassVar[int] = 500
    websocket_code: ClassVar[int] = 1011
    outcome: ClassVar[str] = "error"  # of the request, in its log line and in the metrics

    model: str | None = None  # whose error it is, where another model passes it on


class InvalidRequestError(ChatTTSError):
    """The request is wrong, and the caller can fix it."""

    error_type = "invalid_request"
    triton_code = "INVALID_ARG"
    http_status = 400
    websocket_code = 1008
    outcome = "invalid"

    @classmethod
    def of(cls, field: str, got: object, wanted: str) -> InvalidRequestError:
        """The one wording of a refused field: its name, what came and what is wanted."""
        return cls(f"{field}: got {shorten(got)}, wanted {wanted}")


class OverloadedError(ChatTTSError):
    """The waiting queue is full."""

    error_type = "overloaded"
    triton_code = "UNAVAILABLE"
    http_status = 503
    websocket_code = 1013
    outcome = "refused"


class RequestCancelledError(ChatTTSError):
    """The caller cancelled the request or went away."""

    error_type = "cancelled"
    triton_code = "CANCELLED"
    http_status = 499
    outcome = "cancelled"


class DeadlineExceededError(ChatTTSError):
    """The request's timeout ran out before it was finished."""

    error_type = "deadline_exceeded"
    triton_code = "CANCELLED"  # Triton's Python backend has no code for a deadline
    http_status = 504
    websocket_code = 1013
    outcome = "deadline"


class GenerationError(ChatTTSError):
    """The model failed on a valid request."""

    error_type = "generation"


class ModelLoadError(ChatTTSError):
    """A checkpoint or an export is missing, damaged or of another shape."""

    error_type = "model_load"


class ServerStartError(ChatTTSError):
    """tritonserver could not be started, or its model did not become ready."""

    error_type = "server_start"


def fresh(error: ChatTTSError) -> ChatTTSError:
    """The same error to be raised anew.

    One that is kept must not be raised itself: its traceback would hold the frames, and so all that
    they know of, which in turn hold the error.
    """
    copy = type(error)(*error.args)
    copy.model = error.model
    return copy


def shorten(value: object, limit: int = 60) -> str:
    """`repr(value)` for a message: at most `limit` characters, however long the value is."""
    # A long text is cut before it is quoted, so that a huge one costs nothing.
    text = repr(value[:limit] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
