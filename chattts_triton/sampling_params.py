"""What a caller may set about the drawing of codes, validated once, before it costs anything."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import InvalidRequestError

MAX_SEED = 2**63 - 1
RANDOM_SEED = -1  # asks for a fresh seed, as does leaving SEED out


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
        _check_range("SEED", self.seed, 0, MAX_SEED)
        _check_range("MAX_NEW_TOKENS", self.max_new_codes, 1, MAX_NEW_CODES)
        # The bounds of the floats keep every score finite: logits / 1e-6 / 0.5 ** 16 < 1e13.
        _check_range("TEMPERATURE", self.temperature, 1e-6, 10.0)
        _check_range("TOP_P", self.top_p, 1e-6, 1.0)
        _check_range("TOP_K", self.top_k, 1, 626)
        _check_range("REPETITION_PENALTY", self.repetition_penalty, 0.5, 10.0)


def _check_range(field: str, value: float, low: float, high: float) -> None:
    # float32 tensors widen to e.g. 9.999999974752427e-07, so the bounds give way by one ulp of it.
    slack = 1e-6 * abs(low) if isinstance(low, float) else 0
    if not math.isfinite(value) or not low - slack <= value <= high:
        raise InvalidRequestError.of(field, value, f"{low} to {high}")
