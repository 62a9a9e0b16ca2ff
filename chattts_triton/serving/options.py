"""The options of one call, row by row: from its tensors, else its parameters, else the defaults."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import DEFAULT_SPEED, MAX_SPEED, MIN_SPEED
from chattts_triton.errors import InvalidRequestError, shorten
from chattts_triton.sampling_params import MAX_SEED, RANDOM_SEED, SamplingParams, check_range
from chattts_triton.serving.edge import NUMPY_DTYPES
from chattts_triton.tensors import MAX_BATCH_SIZE, OPTIONS, PREPROCESS, TEXT, TensorSpec

# Parameters that belong to Triton. Some it takes out itself, but not on every way in (its HTTP
# `generate` hands on every one), so they are let pass and mean nothing here.
TRITON_PARAMETERS = frozenset(
    {
        "binary_data_output",
        "headers",
        "id",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
    }
)
TRITON_PREFIX = "triton_"

# A seed that nobody chose is kept small enough for JSON numbers, so that a caller in JavaScript
# can send the same one again.
MAX_FRESH_SEED = 2**53 - 1

_PARAMETER_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "INT64": ((int,), "an integer"),
    "INT32": ((int,), "an integer"),
    "FP32": ((int, float), "a number"),
    "BOOL": ((bool,), "true or false"),
    "STRING": ((str,), "a string"),
}
_PARAMETERS = {spec.name.lower(): spec for spec in OPTIONS}

# Only a parameter, since it is about the whole call: who waits for a slot is served in this order.
PRIORITY_PARAMETER = "queue_priority"
HIGHEST_PRIORITY = 0
LOWEST_PRIORITY = 2
DEFAULT_PRIORITY = 1


@dataclass(frozen=True)
class RowOptions:
    """What one text is spoken with; every value is in range."""

    seed: int
    voice: str  # a name, `seed:N` or a speaker string; empty: drawn from the seed
    speed: int
    language: Literal["zh", "en"] | None
    refine: bool
    trim: bool
    max_new_codes: int | None  # None: in proportion to the text

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float


@dataclass(frozen=True)
class Inputs:
    """The tensors and parameters of one call, their names, types and shapes checked.

    Raises:
        InvalidRequestError: A name is unknown, TEXT is missing, or a type or shape is wrong.
    """

    tensors: Mapping[str, npt.NDArray[Any]]
    parameters: Mapping[str, object]

    def __post_init__(self) -> None:
        known = [spec.name for spec in PREPROCESS.inputs]
        for name in self.tensors:
            if name not in known:
                raise InvalidRequestError(
                    f"{shorten(name)}: unknown input, known are {', '.join(known)}"
                )
        if TEXT.name not in self.tensors:
            raise InvalidRequestError(f"{TEXT.name}: missing")
        for spec in PREPROCESS.inputs:
            if spec.name in self.tensors:
                self._check_tensor(spec)
        for name, value in self.parameters.items():
            _check_parameter(name, value)
        read_queue_priority(self.parameters)

    @property
    def num_rows(self) -> int:
        """How many texts the call holds."""
        return len(self.tensors[TEXT.name])

    def field(self, name: str, row: int) -> str:
        """How errors name a value: with its row, where the call has several."""
        return f"{name}[{row}]" if self.num_rows > 1 and name in self.tensors else name

    def get(self, name: str, row: int) -> Any:
        """The value of an input for one row (a tensor wins over a parameter), else None."""
        if name in self.tensors:
            value = self.tensors[name][row, 0]
            return value.item() if isinstance(value, np.generic) else value
        return self.parameters.get(name.lower())

    def _check_tensor(self, spec: TensorSpec) -> None:
        array = self.tensors[spec.name]
        if array.dtype != NUMPY_DTYPES[spec.dtype]:
            raise InvalidRequestError(f"{spec.name}: got {array.dtype}, wanted {spec.dtype}")
        text = self.tensors[TEXT.name]
        wanted = (text.shape[0] if text.ndim else 0, 1)
        if array.shape != wanted or not 1 <= wanted[0] <= MAX_BATCH_SIZE:
            raise InvalidRequestError(
                f"{spec.name}: got shape {list(array.shape)}, wanted [N, 1], N being the number of "
                f"texts, 1 to {MAX_BATCH_SIZE}"
            )
        if spec.dtype == "STRING":
            for row in range(self.num_rows):
                if not isinstance(array[row, 0], bytes):
                    got = type(array[row, 0]).__name__
                    raise InvalidRequestError(
                        f"{self.field(spec.name, row)}: got {got}, wanted bytes"
                    )


def read_queue_priority(parameters: Mapping[str, object]) -> int:
    """Where a call waits: 0 before others, 2 behind them.

    Raises:
        InvalidRequestError: It is no such number.
    """
    priority = parameters.get(PRIORITY_PARAMETER, DEFAULT_PRIORITY)
    # True is an int to Python, but not to a caller.
    number = priority if isinstance(priority, int) and not isinstance(priority, bool) else -1
    if HIGHEST_PRIORITY <= number <= LOWEST_PRIORITY:
        return number
    wanted = f"{HIGHEST_PRIORITY} to {LOWEST_PRIORITY}"
    raise InvalidRequestError.of(PRIORITY_PARAMETER, priority, wanted)


def read_row(inputs: Inputs, row: int) -> RowOptions:
    """Gather and check the options of one text, drawing a fresh seed where none is given.

    Raises:
        InvalidRequestError: A value is out of range; the message names its field and row.
    """
    return RowOptions(
        seed=_read_seed(inputs, row),
        voice=_read_string(inputs, "VOICE", row),
        speed=_read_speed(inputs, row),
        language=_read_language(inputs, row),
        refine=bool(inputs.get("REFINE", row)),
        trim=bool(inputs.get("TRIM", row)),
        max_new_codes=_read_ranged(inputs, "MAX_NEW_TOKENS", row, None),
        temperature=_read_ranged(inputs, "TEMPERATURE", row, SamplingParams.temperature),
        top_p=_read_ranged(inputs, "TOP_P", row, SamplingParams.top_p),
        top_k=_read_ranged(inputs, "TOP_K", row, SamplingParams.top_k),
        repetition_penalty=_read_ranged(
            inputs, "REPETITION_PENALTY", row, SamplingParams.repetition_penalty
        ),
    )


def fresh_seed() -> int:
    """A seed from the operating system's randomness; no random state of the process is touched."""
    return secrets.randbelow(MAX_FRESH_SEED + 1)


def _check_parameter(name: str, value: object) -> None:
    if name in (*TRITON_PARAMETERS, PRIORITY_PARAMETER) or name.startswith(TRITON_PREFIX):
        return
    if name not in _PARAMETERS:
        known = ", ".join(sorted([*_PARAMETERS, PRIORITY_PARAMETER]))
        raise InvalidRequestError(f"{shorten(name)}: unknown parameter, known are {known}")
    types, wanted = _PARAMETER_TYPES[_PARAMETERS[name].dtype]
    if isinstance(value, int) and not _is_int64(value):
        raise InvalidRequestError(f"{name}: got an integer beyond 64 bits, wanted {wanted}")
    # True is an int to Python, but not to a caller.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        is_scalar = isinstance(value, bool | int | float | str)
        got = shorten(value) if is_scalar else f"a {type(value).__name__}"
        raise InvalidRequestError(f"{name}: got {got}, wanted {wanted}")


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _read_ranged(inputs: Inputs, name: str, row: int, default: Any) -> Any:
    value = inputs.get(name, row)
    if value is None:
        return default
    check_range(name, value, inputs.field(name, row))
    return value


def _read_seed(inputs: Inputs, row: int) -> int:
    seed = inputs.get("SEED", row)
    if seed is None or seed == RANDOM_SEED:
        return fresh_seed()
    if not 0 <= seed <= MAX_SEED:
        wanted = f"0 to {MAX_SEED}, or {RANDOM_SEED} for a fresh one"
        raise InvalidRequestError.of(inputs.field("SEED", row), seed, wanted)
    return int(seed)


def _read_speed(inputs: Inputs, row: int) -> int:
    speed = inputs.get("SPEED", row)
    if speed is None:
        return DEFAULT_SPEED
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidRequestError.of(
            inputs.field("SPEED", row), speed, f"{MIN_SPEED} to {MAX_SPEED}"
        )
    return int(speed)


def _read_string(inputs: Inputs, name: str, row: int) -> str:
    """An absent string and an empty one are the same: in a batch, a row has no other way out."""
    value = inputs.get(name, row)
    if not isinstance(value, bytes):
        return value or ""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequestError.of(inputs.field(name, row), value, "UTF-8") from None


def _read_language(inputs: Inputs, row: int) -> Literal["zh", "en"] | None:
    match _read_string(inputs, "LANG", row):
        case "":
            return None
        case "zh" | "en" as language:
            return language
        case other:
            raise InvalidRequestError.of(inputs.field("LANG", row), other, "'zh' or 'en'")
