"""What the server answers, held against the contract: an `Audio` for each text, or one chunk."""

from __future__ import annotations

import json
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferResult

from chattts_client._audio import SAMPLE_RATE_HZ, Audio, FinishReason
from chattts_client._chunks import AudioChunk, StreamModeUsed
from chattts_client._errors import GenerationError


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
    pcm16 = _optional_pcm16(result, audio.shape)
    refined = _optional_strings(result, "REFINED_TEXT", num_texts)
    warnings = [_parse_warnings(text) for text in _optional_strings(result, "WARNINGS", num_texts)]
    return [
        Audio(
            samples=_owned_samples(audio[row, :length]),
            sample_rate=SAMPLE_RATE_HZ,
            seed=int(seeds[row, 0]),
            finish_reason=_checked_reason(reasons[row, 0]),
            pcm16=None if pcm16 is None else pcm16[row, :length].copy(),
            refined_text=refined[row],
            warnings=warnings[row],
        )
        for row, length in enumerate(
            _checked_length(int(length), audio.shape[1]) for length in lengths[:, 0]
        )
    ]


def parse_chunk(result: InferResult) -> AudioChunk:
    """One chunk of a stream.

    Raises:
        GenerationError: An output is missing, or not what the contract says.
    """
    audio = _output(result, "AUDIO", np.float32, (1, None))
    pcm16 = _optional_pcm16(result, audio.shape)
    row_shape = (1, 1)
    reason = _output(result, "FINISH_REASON", np.object_, row_shape)[0, 0]
    return AudioChunk(
        samples=_owned_samples(audio[0]),
        pcm16=None if pcm16 is None else pcm16[0].copy(),
        index=int(_output(result, "CHUNK_INDEX", np.int32, row_shape)[0, 0]),
        sample_rate=SAMPLE_RATE_HZ,
        seed=int(_output(result, "SEED_USED", np.int64, row_shape)[0, 0]),
        mode=_checked_mode(_output(result, "MODE_USED", np.object_, row_shape)[0, 0]),
        finish_reason=_checked_reason(reason) if reason else None,
        refined_text=_optional_strings(result, "REFINED_TEXT", 1)[0],
        warnings=_parse_warnings(_optional_strings(result, "WARNINGS", 1)[0]),
    )


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


def _owned_samples(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy, since a view would keep the whole answer in memory, and is read-only."""
    if not np.isfinite(samples).all():
        raise GenerationError("AUDIO: got NaN or infinity from the server, wanted finite samples")
    return samples.copy()


def _optional_pcm16(result: InferResult, shape: tuple[int, ...]) -> NDArray[np.int16] | None:
    if result.get_output("PCM16") is None:
        return None
    return _output(result, "PCM16", np.int16, shape)


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
    return cast(FinishReason, _one_of("FINISH_REASON", value, get_args(FinishReason)))


def _checked_mode(value: bytes) -> StreamModeUsed:
    return cast(StreamModeUsed, _one_of("MODE_USED", value, get_args(StreamModeUsed)))


def _one_of(name: str, value: bytes, known: tuple[str, ...]) -> str:
    text = value.decode("utf-8", errors="replace")
    if text not in known:
        raise GenerationError(f"{name}: got {text!r} from the server, wanted one of {known}")
    return text
