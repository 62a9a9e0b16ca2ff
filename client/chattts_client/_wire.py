"""One call on its way to the server: the channel it takes, and the request of either model.

Plain functions without a connection, the same for both clients; answers are read in `_answer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import InferInput, service_pb2
from tritonclient.utils import serialize_byte_tensor

from chattts_client._errors import InvalidRequestError
from chattts_client._options import (
    SynthesisOptions,
    Tensor,
    mode_tensor,
    option_parameters,
    option_tensors,
    text_tensor,
)

DEFAULT_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 86_400.0

# 64 texts of 43.68 s are 403 MB as AUDIO and PCM16; gRPC's own limit is 4 MiB.
MAX_MESSAGE_BYTES = 2**31 - 1
# Triton answers pings that come more often than every 5 minutes by closing the connection
# (its --grpc-http2-min-recv-ping-interval-without-data and --grpc-http2-max-ping-strikes).
KEEPALIVE_TIME_MS = 300_000
KEEPALIVE_TIMEOUT_MS = 20_000
# gRPC itself waits up to two minutes before it tries again to reach a server that was away.
FIRST_RECONNECT_MS = 100
MAX_RECONNECT_MS = 1_000
# What gRPC calls the least backoff is also how long one attempt may take: a server that is far
# away or busy must have time to answer.
CONNECT_TIMEOUT_MS = 5_000

CHANNEL_ARGS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
]
STREAM_SUFFIX = "_stream"

_MICROSECONDS = 1_000_000


def infer_arguments(
    model_name: str, texts: Sequence[str], options: SynthesisOptions, timeout_s: float
) -> dict[str, Any]:
    """The keyword arguments of `infer`, the same in Triton's two gRPC clients.

    The timeout is set twice: gRPC's ends the call at this end, the request parameter has the
    server stop working on it.

    Raises:
        InvalidRequestError: Something cannot be sent; the message names the tensor.
    """
    return {
        "model_name": model_name,
        "inputs": [
            _infer_input(tensor)
            for tensor in (text_tensor(texts), *option_tensors(options, len(texts)))
        ],
        "parameters": option_parameters(options),
        "timeout": _microseconds(timeout_s),
        "client_timeout": timeout_s,
    }


def stream_request(
    model_name: str, text: str, options: SynthesisOptions, mode: str | None, timeout_s: float
) -> Any:
    """The one message that a client sends in a stream, a `ModelInferRequest`.

    Raises:
        InvalidRequestError: Something cannot be sent; the message names the tensor.
    """
    request = service_pb2.ModelInferRequest(model_name=model_name + STREAM_SUFFIX)
    mode_tensors = [] if mode is None else [mode_tensor(mode)]
    for tensor in (text_tensor([text]), *option_tensors(options, 1), *mode_tensors):
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.values.shape)
        request.raw_input_contents.append(_raw(tensor))
    request.parameters["timeout"].int64_param = _microseconds(timeout_s)
    # The call is cancelled once the last chunk is there; the server must not end it before, or
    # tritonserver would keep what is on its way to a client that leaves.
    request.parameters["caller_closes"].bool_param = True
    for name, value in option_parameters(options).items():
        request.parameters[name].int64_param = value
    return request


def checked_timeout(timeout_s: float) -> float:
    """`timeout_s` itself.

    Raises:
        InvalidRequestError: It is no number of seconds above 0 and within a day.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError.of("timeout_s", timeout_s, f"above 0, at most {MAX_TIMEOUT_S:g}")
    return timeout_s


def _microseconds(timeout_s: float) -> int:
    return max(1, round(checked_timeout(timeout_s) * _MICROSECONDS))


def _infer_input(tensor: Tensor) -> InferInput:
    infer_input = InferInput(tensor.name, list(tensor.values.shape), tensor.datatype)
    infer_input.set_data_from_numpy(tensor.values)
    return infer_input


def _raw(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        raw: bytes = serialize_byte_tensor(tensor.values).item()
        return raw
    return tensor.values.tobytes()
