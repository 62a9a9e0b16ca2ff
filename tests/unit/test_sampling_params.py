import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from chattts_triton.errors import InvalidRequestError
from chattts_triton.sampling_params import RANGES, SamplingParams, check_range

FIELDS = {
    "SEED": "seed",
    "MAX_NEW_TOKENS": "max_new_codes",
    "TEMPERATURE": "temperature",
    "TOP_P": "top_p",
    "TOP_K": "top_k",
    "REPETITION_PENALTY": "repetition_penalty",
}
VALID: dict[str, Any] = {"seed": 1, "max_new_codes": 100}


def test_every_field_has_a_range() -> None:
    assert [field.name for field in dataclasses.fields(SamplingParams)] == list(FIELDS.values())
    assert set(RANGES) == set(FIELDS)


def test_the_defaults_are_upstreams() -> None:
    params = SamplingParams(**VALID)

    assert (params.temperature, params.top_p, params.top_k) == (0.3, 0.7, 20)
    assert params.repetition_penalty == 1.05


@pytest.mark.parametrize("name", FIELDS)
def test_both_bounds_are_allowed(name: str) -> None:
    for bound in RANGES[name]:
        params = SamplingParams(**VALID | {FIELDS[name]: bound})
        assert getattr(params, FIELDS[name]) == bound


@pytest.mark.parametrize("name", FIELDS)
def test_bounds_that_went_through_a_float32_tensor_are_allowed(name: str) -> None:
    low, high = RANGES[name]
    if isinstance(low, float):
        SamplingParams(**VALID | {FIELDS[name]: float(np.float32(low))})
        params = SamplingParams(**VALID | {FIELDS[name]: float(np.float32(high))})
        assert getattr(params, FIELDS[name]) == high
    else:
        with pytest.raises(InvalidRequestError):
            SamplingParams(**VALID | {FIELDS[name]: low - 1})


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_outside_is_refused_by_name(name: str) -> None:
    low, high = RANGES[name]
    step = 1 if isinstance(low, int) else 1e-3

    for value in (low - step, high + step):
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**VALID | {FIELDS[name]: value})
        assert str(caught.value) == f"{name}: got {value!r}, wanted {low} to {high}"


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
def test_what_is_no_finite_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^{name}: got "):
        SamplingParams(**VALID | {FIELDS[name]: value})


def test_the_error_can_name_the_row() -> None:
    with pytest.raises(InvalidRequestError, match=r"^TOP_K\[3\]: got 0, wanted 1 to 626$"):
        check_range("TOP_K", 0, "TOP_K[3]")
