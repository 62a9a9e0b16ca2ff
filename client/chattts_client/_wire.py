"""One call on the wire: the arguments of Triton's `infer`, and its answer as `Audio`.

Plain functions without a connection, the same for both clients.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, InferResult

from chattts_client._audio import SAMPLE_RATE_HZ, Audio, FinishReason
from chattts_client._errors import GenerationError, InvalidRequestError
from chattts_client._options import SynthesisOptions, option_tensors, text_tensor

DEFAULT_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 86_400.0

# 64 texts of 43.68 s are 403 MB as AUDIO and PCM16; gRPC's own limit is 4 MiB.
MAX_MESSAGE_BYTES = 2**31 - 1
# Triton answers pings that come more often than every 5 minutes by closing the connection
# (its --grpc-http2-min-recv-ping-interval-without-data and --grpc-http2-max-ping-strikes).
KEEPALIVE_TIME_MS = 300_000
KEEPALIVE_TIMEOUT_MS = 20_000

CHANNEL_ARGS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
]

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
            _infer_input(*tensor)
            for tensor in (text_tensor(texts), *option_tensors(options, len(texts)))
        ],
        "timeout": max(1, round(checked_timeout(timeout_s) * _MICROSECONDS)),
        "client_timeout": timeout_s,
    }


def checked_timeout(timeout_s: float) -> float:
    """`timeout_s` itself.

    Raises:
        InvalidRequestError: It is no number of seconds above 0 and within a day.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError.of("timeout_s", timeout_s, f"above 0, at most {MAX_TIMEOUT_S:g}")
    return timeout_s


def parse_response(result: InferResult, num_texts: int) -> list[Audio]:
    """The audio of each text, in the order of the texts, cut to its own length.

    Raises:
        GenerationError: An output is missing, or not what the contract says.
    """
    audio = _output(result, "AUDIO", np.float32, (num_texts, None))
    row_shape = (num_texts, 1)
    lengths = _output(result, "AUDIO_LENGTH", np.int64, row_shape)
    seeds = _output(result, "SEED_USED", np.int64, row_shape)
    reasons = _output(result, "FINISH_REASON", np.object_, row_shape)
    pcm16 = (
        None
        if result.get_output("PCM16") is None
        else _output(result, "PCM16", np.int16, audio.shape)
    )
    refined = _optional_strings(result, "REFINED_TEXT", num_texts)
    warnings = [_parse_warnings(text) for text in _optional_strings(result, "WARNINGS", num_texts)]
    return [
        _row_audio(
            samples=audio[row, : _checked_length(int(lengths[row, 0]), audio.shape[1])],
            seed=int(seeds[row, 0]),
            finish_reason=_checked_reason(reasons[row, 0]),
            pcm16=None if pcm16 is None else pcm16[row],
            refined_text=refined[row],
            warnings=warnings[row],
        )
        for row in range(num_texts)
    ]


def _infer_input(name: str, datatype: str, values: NDArray[Any]) -> InferInput:
    infer_input = InferInput(name, list(values.shape), datatype)
    infer_input.set_data_from_numpy(values)
    return infer_input


def _output(
    result: InferResult, name: str, dtype: type[Any], shape: tuple[int | None, ...]
) -> NDArray[Any]:
    try:
        values = result.as_numpy(name)
    except ValueError as error:  # the bytes do not fill the shape
        raise GenerationError(f"{name}: the server's answer is damaged: {error}") from error
    if values is None:
        raise GenerationError(f"{name}: missing in the server's answer")
    fits = len(values.shape) == len(shape) and all(
        wanted in (None, got) for got, wanted in zip(values.shape, shape, strict=True)
    )
    if values.dtype != dtype or not fits:
        raise GenerationError(
            f"{name}: got {values.dtype} {list(values.shape)} from the server, "
            f"wanted {np.dtype(dtype)} {[-1 if size is None else size for size in shape]}"
        )
    return cast(NDArray[Any], values)


def _row_audio(
    samples: NDArray[np.float32],
    seed: int,
    finish_reason: FinishReason,
    pcm16: NDArray[np.int16] | None,
    refined_text: str,
    warnings: tuple[str, ...],
) -> Audio:
    if not np.isfinite(samples).all():
        raise GenerationError("AUDIO: got NaN or infinity from the server, wanted finite samples")
    return Audio(
        # Copies, since a view would keep the whole answer in memory, and is read-only.
        samples=samples.copy(),
        sample_rate=SAMPLE_RATE_HZ,
        seed=seed,
        finish_reason=finish_reason,
        pcm16=None if pcm16 is None else pcm16[: len(samples)].copy(),
        refined_text=refined_text,
        warnings=warnings,
    )


def _optional_strings(result: InferResult, name: str, num_texts: int) -> list[str]:
    """An output that a server may lack: then each text has an empty one."""
    if result.get_output(name) is None:
        return [""] * num_texts
    values = _output(result, name, np.object_, (num_texts, 1))
    return [value.decode("utf-8", errors="replace") for value in values[:, 0]]


def _parse_warnings(text: str) -> tuple[str, ...]:
    try:
        codes = json.loads(text or "[]")
    except ValueError as error:
        raise GenerationError(f"WARNINGS: the server's answer is damaged: {error}") from error
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise GenerationError(f"WARNINGS: got {text!r} from the server, wanted a list of codes")
    return tuple(codes)


def _checked_length(length: int, num_samples: int) -> int:
    if not 0 < length <= num_samples:
        raise GenerationError(
            f"AUDIO_LENGTH: got {length} from the server, wanted 1 to {num_samples}"
        )
    return length


def _checked_reason(value: bytes) -> FinishReason:
    reason = value.decode("utf-8", errors="replace")
    if reason not in get_args(FinishReason):
        raise GenerationError(
            f"FINISH_REASON: got {reason!r} from the server, wanted one of {get_args(FinishReason)}"
        )
    return cast(FinishReason, reason)
