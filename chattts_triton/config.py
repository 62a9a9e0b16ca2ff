"""What the operator decides: Triton `parameters` of config.pbtxt, then `CHATTTS_*` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from chattts_triton.constants import (
    CONTEXT_CODES,
    HOP_SAMPLES,
    MAX_NEW_CODES,
    SAMPLES_PER_CODE,
)
from chattts_triton.errors import ModelLoadError, shorten

ENVIRONMENT_PREFIX = "CHATTTS_"
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LOG_LEVEL = "info"
MAX_TEXT_IDS = 1024  # of one segment's prompt
MAX_PROMPT_CODES = 1024  # of a voice sample, 21.8 s
MAX_CHARACTERS = 5_000  # of a text as it was sent; an operator may set less
# Answers are padded to the longest text of a call: 805 MB of hidden states at the most.
MAX_CALL_CODES = 1 << 18
MAX_TIMEOUT_MS = 86_400_000  # a day
SHORTEST_PREFILL = (
    12  # positions: shorter pieces of a prompt are run by kernels that round otherwise
)
MAX_MODEL_LEN = MAX_TEXT_IDS + MAX_PROMPT_CODES + MAX_NEW_CODES  # positions of a KV slot


@dataclass(frozen=True)
class EngineConfig:
    """Limits and habits of the `gpt` engine.

    Attributes:
        max_num_seqs: Sequences that run at the same time, each with a KV slot of its own.
        max_waiting: Sequences that may wait for a slot; one more is refused at once.
        max_queue_delay_us: How long an idle engine waits for company before its first prefill.
        prefill_chunk: Positions of a newcomer's prompt that are run before each step of those who
            run already; 0 runs every prompt at once.
        exact_batching: Keep the samples of a sequence independent of its neighbours bit for bit.
        threads: Threads of the session; 0 takes every core that the process may use.
        default_timeout_ms: How long a request may wait and run that sends no timeout.
        stream_idle_timeout_ms: A stream that nobody reads for so long is given up.
        device_memory_mb: Most memory of a CUDA device that weights, KV slots and what a step needs
            may take together, in megabytes; 0 sets no limit. Means nothing on the CPU.

    Raises:
        ModelLoadError: A value is out of range; the message names the parameter.
    """

    max_num_seqs: int = 16
    max_waiting: int = 256
    max_queue_delay_us: int = 0
    prefill_chunk: int = 16
    exact_batching: bool = True
    threads: int = 0
    default_timeout_ms: int = 600_000
    stream_idle_timeout_ms: int = 120_000
    device_memory_mb: int = 0

    def __post_init__(self) -> None:
        _check("max_num_seqs", self.max_num_seqs, 1, 1024)
        _check("max_waiting", self.max_waiting, 0, 1_000_000)
        _check("max_queue_delay_us", self.max_queue_delay_us, 0, 10_000_000)
        if self.prefill_chunk:
            _check("prefill_chunk", self.prefill_chunk, SHORTEST_PREFILL, MAX_MODEL_LEN)
        _check("default_timeout_ms", self.default_timeout_ms, 1, MAX_TIMEOUT_MS)
        _check("stream_idle_timeout_ms", self.stream_idle_timeout_ms, 1, MAX_TIMEOUT_MS)
        _check("threads", self.threads, 0, 1024)
        _check("device_memory_mb", self.device_memory_mb, 0, 1_000_000)


@dataclass(frozen=True)
class PreprocessConfig:
    """What may be set about `preprocess`; longer texts than `max_characters` are refused."""

    max_characters: int = MAX_CHARACTERS

    def __post_init__(self) -> None:
        _check("max_characters", self.max_characters, 1, MAX_CHARACTERS)


@dataclass(frozen=True)
class VocoderConfig:
    """What may be set about `vocos_decoder`.

    Attributes:
        threads: Threads of the session; 0 takes half of the cores that the process may use, since
            the engine goes on generating while a chunk of a stream is decoded.
    """

    threads: int = 0

    def __post_init__(self) -> None:
        _check("threads", self.threads, 0, 1024)


@dataclass(frozen=True)
class StreamConfig:
    """How `chattts_stream` cuts a text's audio into chunks.

    Attributes:
        first_chunk_codes: Length of a segment's first chunk in the mode low_latency, in code steps
            of 21.33 ms.
        first_quality_chunk_codes: The same in the mode quality, whose windows take longer to
            decode.
        chunk_growth_percent: Length of each further chunk, in percent of the one before it.
        max_chunk_codes: What the chunks grow to.
        look_ahead_codes: Steps behind a chunk that are decoded with it in the mode low_latency.
        cross_fade_samples: Over how many samples the chunks of that mode blend.
        max_streams: Streams that are open at the same time; one more is refused at once.
        auto_first_audio_ms: The mode auto takes quality where the first chunk of it is expected
            within so long, and low_latency where it is not.
        default_timeout_ms: As in EngineConfig.

    Raises:
        ModelLoadError: A value is out of range; the message names the parameter.
    """

    first_chunk_codes: int = 11
    first_quality_chunk_codes: int = 32
    chunk_growth_percent: int = 115
    max_chunk_codes: int = 96
    look_ahead_codes: int = 10
    cross_fade_samples: int = 256
    max_streams: int = 64
    auto_first_audio_ms: int = 500
    default_timeout_ms: int = 600_000

    def __post_init__(self) -> None:
        _check("first_chunk_codes", self.first_chunk_codes, 1, MAX_NEW_CODES)
        _check("chunk_growth_percent", self.chunk_growth_percent, 100, 1000)
        _check("first_quality_chunk_codes", self.first_quality_chunk_codes, 1, MAX_NEW_CODES)
        longest_first = max(self.first_chunk_codes, self.first_quality_chunk_codes)
        _check("max_chunk_codes", self.max_chunk_codes, longest_first, MAX_NEW_CODES)
        _check("look_ahead_codes", self.look_ahead_codes, 1, CONTEXT_CODES)
        # The window before holds so many samples of the next chunk.
        longest_fade = SAMPLES_PER_CODE * self.look_ahead_codes - HOP_SAMPLES
        _check("cross_fade_samples", self.cross_fade_samples, 0, longest_fade)
        _check("max_streams", self.max_streams, 1, 1024)
        _check("auto_first_audio_ms", self.auto_first_audio_ms, 0, MAX_TIMEOUT_MS)
        _check("default_timeout_ms", self.default_timeout_ms, 1, MAX_TIMEOUT_MS)


Config = TypeVar("Config", PreprocessConfig, EngineConfig, VocoderConfig, StreamConfig)


def read_config(
    kind: type[Config],
    parameters: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Build a model's configuration; a variable `CHATTTS_<NAME>` wins over a parameter.

    Raises:
        ModelLoadError: A parameter is unknown or malformed; the message names the known ones.
    """
    environment = os.environ if environment is None else environment
    kinds = {field.name: field.type for field in fields(kind)}
    unknown = sorted(set(parameters) - set(kinds))
    if unknown:
        raise ModelLoadError(f"parameter {unknown[0]}: unknown, known are {', '.join(kinds)}")
    values: dict[str, Any] = {}
    for name, type_name in kinds.items():
        text = environment.get(f"{ENVIRONMENT_PREFIX}{name.upper()}", parameters.get(name))
        if text is not None:
            values[name] = _parse(name, text, is_bool=type_name == "bool")
    return kind(**values)


def read_log_level(environment: Mapping[str, str] | None = None) -> str:
    """How much the models log: one of LOG_LEVELS, by the variable CHATTTS_LOG_LEVEL.

    Raises:
        ModelLoadError: It is none of them; the message names them.
    """
    environment = os.environ if environment is None else environment
    name = f"{ENVIRONMENT_PREFIX}LOG_LEVEL"
    level = environment.get(name, DEFAULT_LOG_LEVEL).lower()
    if level not in LOG_LEVELS:
        raise ModelLoadError(f"{name}: got {shorten(level)}, wanted {', '.join(LOG_LEVELS)}")
    return level


def num_threads(configured: int, *, share: float = 1.0) -> int:
    """Threads to use: as configured, else for a share of the cores this process may run on."""
    return configured or max(1, int(share * len(os.sched_getaffinity(0))))


def _parse(name: str, text: str, *, is_bool: bool) -> int | bool:
    if is_bool:
        if text.lower() in ("true", "1"):
            return True
        if text.lower() in ("false", "0"):
            return False
        raise ModelLoadError(f"parameter {name}: got {shorten(text)}, wanted true or false")
    try:
        return int(text)
    except ValueError:
        raise ModelLoadError(
            f"parameter {name}: got {shorten(text)}, wanted a whole number"
        ) from None


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ModelLoadError(f"parameter {name}: got {value}, wanted {low} to {high}")
