"""Every error that a call can end with, and the one place where Triton's statuses become them.

ChatTTSClientError
  InvalidRequestError        the caller can fix it: names the tensor, what came, what is wanted
  OverloadedError            the server's waiting queue is full; try again later
  RequestCancelledError      the call was cancelled
  DeadlineExceededError      the call's timeout ran out, at the server or here
  GenerationError            the server failed on a valid request, or its answer breaks the contract
  ServerUnreachableError     no connection, the connection broke, or the model is not loaded

The message of an error is the server's own text wherever the server gave one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tritonclient.utils import InferenceServerException

# A full queue is refused by a member of the ensemble, or by Triton itself; any other UNAVAILABLE
# comes from the transport or from a server that stops or has not loaded the model.
_REFUSED_BY_QUEUE = re.compile(r"in ensemble '[^']*', \w+: |\bqueue\b")
# The first is our engine's text, the second that of Triton's dynamic batcher.
_DEADLINE_AT_SERVER = re.compile(r"deadline of|timeout expired", re.IGNORECASE)


class ChatTTSClientError(Exception):
    """Base of every error that this package raises on purpose."""

    error_type: ClassVar[str] = "error"


class InvalidRequestError(ChatTTSClientError):
    """The request is wrong, and the caller can fix it."""

    error_type = "invalid_request"

    @classmethod
    def of(cls, field: str, got: object, wanted: str) -> InvalidRequestError:
        """The server's own wording of a refused field, for what is refused before it is sent."""
        text = repr(got)
        return cls(
            f"{field}: got {text if len(text) <= 60 else text[:57] + '...'}, wanted {wanted}"
        )


class OverloadedError(ChatTTSClientError):
    """The server's waiting queue is full."""

    error_type = "overloaded"


class RequestCancelledError(ChatTTSClientError):
    """The call was cancelled before it was finished."""

    error_type = "cancelled"


class DeadlineExceededError(ChatTTSClientError):
    """The call's timeout ran out, at the server or at this end."""

    error_type = "deadline_exceeded"


class GenerationError(ChatTTSClientError):
    """The server failed on a valid request, or gave an answer that breaks the contract."""

    error_type = "generation"


class ServerUnreachableError(ChatTTSClientError):
    """There is no server at the URL, it went away during the call, or it has no model loaded."""

    error_type = "unreachable"


@contextmanager
def translated_errors(url: str, timeout_s: float) -> Iterator[None]:
    """Raise what Triton's client raises inside the block as an error of this module."""
    try:
        yield
    except InferenceServerException as error:
        raise client_error(error, url, timeout_s) from error


def client_error(error: InferenceServerException, url: str, timeout_s: float) -> ChatTTSClientError:
    """The error of this module for one of Triton's client, told by its status and text."""
    text = error.message() or "no message"
    match str(error.status()).removeprefix("StatusCode."):
        case "INVALID_ARGUMENT" | "NOT_FOUND":
            return InvalidRequestError(text)
        case "CANCELLED" | "UNAVAILABLE" if _DEADLINE_AT_SERVER.search(text):
            return DeadlineExceededError(text)
        case "CANCELLED":
            return RequestCancelledError(text)
        case "DEADLINE_EXCEEDED":
            return DeadlineExceededError(f"{url}: no answer within {timeout_s:g} s")
        case "UNAVAILABLE" if _REFUSED_BY_QUEUE.search(text):
            return OverloadedError(text)
        case "UNAVAILABLE":
            return ServerUnreachableError(f"{url}: {text}")
        case _:
            return GenerationError(text)
