"""What a caller may set about the drawing of codes, validated once, before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
RANDOM_SEED = -1  # asks for a fresh seed, as does leaving SEED out

RANGES: dict[str, tuple[float, float]] = {
    "SEED": (0, MAX_SEED),
    "MAX_NEW_TOKENS": (1, MAX_NEW_CODES),
    # The bounds of the floats keep every score finite: logits / 1e-6 / 0.5 ** 16 < 1e13.
    "TEMPERATURE": (1e-6, 10.0),
    "TOP_P": (1e-6, 1.0),
    "TOP_K": (1, 626),
    "REPETITION_PENALTY": (0.5, 10.0),
}


@dataclass(frozen=True)
class SamplingParams:
    """How the codes of one sequence are drawn; the defaults are upstream's.

    Raises:
        InvalidRequestError: A value is out of range. The message names the tensor it came in.
    """

    seed: int
    max_new_codes: int
    temperature: float = 0.3
    top_p: float = 0.7
    top_k: int = 20
    repetition_penalty: float = 1.05

    def __post_init__(self) -> None:
        check_range("SEED", self.seed)
        check_range("MAX_NEW_TOKENS", self.max_new_codes)
        check_range("TEMPERATURE", self.temperature)
        check_range("TOP_P", self.top_p)
        check_range("TOP_K", self.top_k)
        check_range("REPETITION_PENALTY", self.repetition_penalty)


Number = TypeVar("Number", int, float)


def check_range(name: str, value: Number, field: str | None = None) -> Number:
    """The value, unless it is outside `RANGES[name]` or NaN; `field` is named, by default `name`.

    Raises:
        InvalidRequestError: The value is out of range.
    """
    low, high = RANGES[name]
    # float32 tensors narrow 1e-6 to 9.999999974752427e-07, so the bound gives way by one ulp.
    slack = 1e-6 * abs(low) if isinstance(low, float) else 0
    if not low - slack <= value <= high:
        raise InvalidRequestError.of(field or name, value, f"{low} to {high}")
    return value
