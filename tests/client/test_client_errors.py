"""Statuses of Triton and of the transport as the client's one tree of errors."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from chattts_client import (
    ChatTTSClientError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServerUnreachableError,
)
from chattts_client._errors import client_error
from chattts_triton.errors import ChatTTSError

URL = "127.0.0.1:8001"

STATUSES: list[tuple[str, str, type[ChatTTSClientError], str]] = [
    (
        "INVALID_ARGUMENT",
        "in ensemble 'chattts', preprocess: SPEED: got 10, wanted 0 to 9",
        InvalidRequestError,
        "in ensemble 'chattts', preprocess: SPEED: got 10, wanted 0 to 9",
    ),
    (
        "NOT_FOUND",
        "Request for unknown model: 'other' is not found",
        ServerUnreachableError,
        f"{URL}: Request for unknown model: 'other' is not found",
    ),
    (
        "UNAVAILABLE",
        "in ensemble 'chattts', gpt: 256 sequences are waiting, try again later",
        OverloadedError,
        "in ensemble 'chattts', gpt: 256 sequences are waiting, try again later",
    ),
    ("UNAVAILABLE", "Exceeds maximum queue size", OverloadedError, "Exceeds maximum queue size"),
    (
        "UNAVAILABLE",
        "failed to connect to all addresses",
        ServerUnreachableError,
        f"{URL}: failed to connect to all addresses",
    ),
    (
        "UNAVAILABLE",
        "Request for unknown model: 'chattts' has no available versions",
        ServerUnreachableError,
        f"{URL}: Request for unknown model: 'chattts' has no available versions",
    ),
    (
        "UNAVAILABLE",
        "in ensemble 'chattts', [request id: <id_unknown>] Server is stopping, scheduler",
        ServerUnreachableError,
        f"{URL}: in ensemble 'chattts', [request id: <id_unknown>] Server is stopping, scheduler",
    ),
    ("UNAVAILABLE", "Request timeout expired", DeadlineExceededError, "Request timeout expired"),
    (
        "CANCELLED",
        "in ensemble 'chattts', gpt: deadline of 500 ms exceeded after 12 steps",
        DeadlineExceededError,
        "in ensemble 'chattts', gpt: deadline of 500 ms exceeded after 12 steps",
    ),
    ("CANCELLED", "Locally cancelled", RequestCancelledError, "Locally cancelled"),
    (
        "DEADLINE_EXCEEDED",
        "Deadline Exceeded",
        DeadlineExceededError,
        f"{URL}: no answer within 0.5 s",
    ),
    (
        "INTERNAL",
        "in ensemble 'chattts', gpt: logits are not finite",
        GenerationError,
        "in ensemble 'chattts', gpt: logits are not finite",
    ),
    ("RESOURCE_EXHAUSTED", "too large", GenerationError, "too large"),
]


@pytest.mark.parametrize(("status", "text", "kind", "message"), STATUSES)
def test_each_status_is_one_class_that_keeps_the_servers_text(
    status: str, text: str, kind: type[ChatTTSClientError], message: str
):
    error = client_error(InferenceServerException(text, f"StatusCode.{status}"), URL, 0.5)

    assert type(error) is kind
    assert str(error) == message


# What Triton 2.51 says in a stream: there is no status, and no model has seen the request.
UNCLASSED_TEXTS: list[tuple[str, type[ChatTTSClientError]]] = [
    (
        "Request for unknown model: 'chattts_stream' has no available versions",
        ServerUnreachableError,
    ),
    ("Request for unknown model: 'chattts_stream' is not found", ServerUnreachableError),
    (
        "Request for unknown model: 'chattts_stream' version 7 is not found",
        ServerUnreachableError,
    ),
    (
        "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped "
        "accepting new inference requests",
        ServerUnreachableError,
    ),
    (
        "[request id: <id_unknown>] inference request batch-size must be <= 1 for 'chattts_stream'",
        InvalidRequestError,
    ),
    (
        "[request id: <id_unknown>] unexpected shape for input 'TEXT' for model "
        "'chattts_stream'. Expected [-1,1], got [1,2].",
        InvalidRequestError,
    ),
    (
        "[request id: <id_unknown>] inference input 'SEED' data-type is 'INT32', but model "
        "'chattts_stream' expects 'INT64'",
        InvalidRequestError,
    ),
    ("unexpected inference input 'FOO' for model 'chattts_stream'", InvalidRequestError),
    (
        "[request id: <id_unknown>] input byte size mismatch for input 'SEED' for model "
        "'chattts_stream'. Expected 8, got 4",
        InvalidRequestError,
    ),
    (
        "[request id: <id_unknown>] input 'TEXT' batch size does not match other inputs for "
        "'chattts_stream'",
        InvalidRequestError,
    ),
    (
        "unable to find data for input tensor 'TEXT' for model 'chattts_stream' in request.",
        InvalidRequestError,
    ),
    (
        "invalid value type for 'timeout' parameter, expected int64_param.",
        InvalidRequestError,
    ),
    ("[request id: <id_unknown>] Exceeds maximum queue size", OverloadedError),
    ("[request id: <id_unknown>] Request timeout expired", DeadlineExceededError),
    ("Stub process 'chattts_stream_0_0' is not healthy.", GenerationError),
]


@pytest.mark.parametrize(("text", "kind"), UNCLASSED_TEXTS)
def test_an_error_of_triton_without_a_status_is_told_by_its_text(
    text: str, kind: type[ChatTTSClientError]
):
    error = client_error(InferenceServerException(text), URL, 0.5)

    assert type(error) is kind
    assert str(error).endswith(text)


def test_an_error_without_status_or_text_is_a_generation_error():
    error = client_error(InferenceServerException(None), URL, 0.5)

    assert type(error) is GenerationError
    assert str(error) == "no message"


def test_the_servers_tree_of_errors_has_the_same_names_and_types():
    theirs = {kind.__name__: kind.error_type for kind in ChatTTSError.__subclasses__()}
    ours = {kind.__name__: kind.error_type for kind in ChatTTSClientError.__subclasses__()}

    shared = set(ours) - {"ServerUnreachableError"}
    assert len(shared) == 5
    assert {name: theirs.get(name) for name in shared} == {name: ours[name] for name in shared}
