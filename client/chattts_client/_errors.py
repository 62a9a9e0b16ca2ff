"""Every error that a call can end with, and the one place where Triton's statuses become them.

ChatTTSClientError
  InvalidRequestError        the caller can fix it: names the tensor, what came, what is wanted
  OverloadedError            the server's waiting queue is full; try again later
  RequestCancelledError      the call was cancelled
  DeadlineExceededError      the call's timeout ran out, at the server or here
  GenerationError            the server failed on a valid request, or its answer breaks the contract
  ServerUnreachableError     no connection, the connection broke, or the model is not loaded

The message of an error is the server's own text wherever the server gave one. Errors in a stream
come without a status: the text of ours begins with `error_type: `, that of Triton's own tells their
class by its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import grpc  # type: ignore[import-untyped]
from tritonclient.utils import InferenceServerException

# A full queue is refused by a member of the ensemble, or by Triton itself; any other UNAVAILABLE
# comes from the transport or from a server that stops or has not loaded the model.
_REFUSED_BY_QUEUE = re.compile(r"in ensemble '[^']*', \w+: |\bqueue\b|streams are open")
# The first is our engine's text, the second that of Triton's dynamic batcher.
_DEADLINE_AT_SERVER = re.compile(r"deadline of|timeout expired", re.IGNORECASE)
_MODEL_NOT_LOADED = re.compile(
    r"unknown model|has no available versions|is not found|server is stopping", re.IGNORECASE
)
# How Triton refuses a tensor or a parameter before any model sees it.
_REFUSED_BY_TRITON = re.compile(
    r"unexpected (shape|inference input)|data-type is|batch.size|byte size mismatch"
    r"|expected \d+ inputs|unable to find data for input|invalid value type"
)


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


_KINDS = {kind.error_type: kind for kind in ChatTTSClientError.__subclasses__()}


@contextmanager
def translated_errors(url: str, timeout_s: float, awaited: str = "answer") -> Iterator[None]:
    """Raise what Triton's client or gRPC raises inside the block as an error of this module.

    Args:
        url: The server's, for the message.
        timeout_s: Of the call.
        awaited: What was not there when the timeout ran out.
    """
    try:
        yield
    except InferenceServerException as error:
        raise client_error(error, url, timeout_s, awaited) from error
    except grpc.RpcError as error:
        # gRPC's error is the call itself; as a cause it would keep the call, and the call it.
        plain = InferenceServerException(error.details(), str(error.code()))
        raise client_error(plain, url, timeout_s, awaited) from None


def client_error(
    error: InferenceServerException, url: str, timeout_s: float, awaited: str = "answer"
) -> ChatTTSClientError:
    """The error of this module for one of Triton's client, told by its status and text."""
    text = error.message() or "no message"
    if error.status() is None:
        return _error_of_text(text, url)
    match str(error.status()).removeprefix("StatusCode."):
        case "NOT_FOUND" | "UNAVAILABLE" if _MODEL_NOT_LOADED.search(text):
            return ServerUnreachableError(f"{url}: {text}")
        case "INVALID_ARGUMENT" | "NOT_FOUND":
            return InvalidRequestError(text)
        case "CANCELLED" | "UNAVAILABLE" if _DEADLINE_AT_SERVER.search(text):
            return DeadlineExceededError(text)
        case "CANCELLED":
            return RequestCancelledError(text)
        case "DEADLINE_EXCEEDED":
            return DeadlineExceededError(f"{url}: no {awaited} within {timeout_s:g} s")
        case "UNAVAILABLE" if _REFUSED_BY_QUEUE.search(text):
            return OverloadedError(text)
        case "UNAVAILABLE":
            return ServerUnreachableError(f"{url}: {text}")
        case _:
            return GenerationError(text)


def _error_of_text(text: str, url: str) -> ChatTTSClientError:
    """An error in a stream, which has no status."""
    error_type, _, message = text.partition(": ")
    if error_type in _KINDS:
        return _KINDS[error_type](message)
    if _MODEL_NOT_LOADED.search(text):
        return ServerUnreachableError(f"{url}: {text}")
    if _REFUSED_BY_TRITON.search(text):
        return InvalidRequestError(text)
    if _DEADLINE_AT_SERVER.search(text):
        return DeadlineExceededError(text)
    if _REFUSED_BY_QUEUE.search(text):
        return OverloadedError(text)
    return GenerationError(text)
