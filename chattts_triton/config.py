"""What the operator decides: Triton `parameters` of config.pbtxt, then `CHATTTS_*` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import ModelLoadError, shorten

ENVIRONMENT_PREFIX = "CHATTTS_"
MAX_TEXT_IDS = 1024  # of one segment's prompt
MAX_PROMPT_CODES = 1024  # of a voice sample, 21.8 s
MAX_CHARACTERS = 5_000  # of a text as it was sent; an operator may set less
# Answers are padded to the longest text of a call: 805 MB of hidden states at the most.
MAX_CALL_CODES = 1 << 18
MAX_MODEL_LEN = MAX_TEXT_IDS + MAX_PROMPT_CODES + MAX_NEW_CODES  # positions of a KV slot


@dataclass(frozen=True)
class EngineConfig:
    """Limits and habits of the `gpt` engine.

    Attributes:
        max_num_seqs: Sequences that run at the same time, each with a KV slot of its own.
        max_waiting: Sequences that may wait for a slot; one more is refused at once.
        max_queue_delay_us: How long an idle engine waits for company before its first prefill.
        exact_batching: Keep the samples of a sequence independent of its neighbours bit for bit.
        threads: Threads of the session; 0 takes every core that the process may use.

    Raises:
        ModelLoadError: A value is out of range; the message names the parameter.
    """

    max_num_seqs: int = 16
    max_waiting: int = 256
    max_queue_delay_us: int = 0
    exact_batching: bool = True
    threads: int = 0

    def __post_init__(self) -> None:
        _check("max_num_seqs", self.max_num_seqs, 1, 1024)
        _check("max_waiting", self.max_waiting, 0, 1_000_000)
        _check("max_queue_delay_us", self.max_queue_delay_us, 0, 10_000_000)
        _check("threads", self.threads, 0, 1024)


@dataclass(frozen=True)
class PreprocessConfig:
    """What may be set about `preprocess`; longer texts than `max_characters` are refused."""

    max_characters: int = MAX_CHARACTERS

    def __post_init__(self) -> None:
        _check("max_characters", self.max_characters, 1, MAX_CHARACTERS)


@dataclass(frozen=True)
class VocoderConfig:
    """What may be set about `vocos_decoder`; `threads` is as in EngineConfig."""

    threads: int = 0

    def __post_init__(self) -> None:
        _check("threads", self.threads, 0, 1024)


Config = TypeVar("Config", PreprocessConfig, EngineConfig, VocoderConfig)


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


def num_threads(configured: int) -> int:
    """Threads to use: as configured, else one for each core this process may run on."""
    return configured or len(os.sched_getaffinity(0))


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
