"""OpenAI's factor of speed, and ChatTTS's speed for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chattts_triton.gateway.speed import LOWER_BOUNDS, MAX_FACTOR, MIN_FACTOR, chattts_speed

DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway.md"


@pytest.mark.parametrize(
    ("factor", "speed"),
    [
        *((0.25, 0), (0.39, 0), (0.4, 1), (0.5, 2), (0.75, 3), (0.9, 4), (1.0, 5), (1.25, 6)),
        *((1.5, 7), (2.0, 8), (2.49, 8), (2.5, 9), (4.0, 9)),
    ],
)
def test_a_factor_has_its_speed(factor: float, speed: int):
    assert chattts_speed(factor) == speed


def test_every_bound_begins_its_own_speed():
    assert [chattts_speed(bound) for bound in LOWER_BOUNDS] == list(range(10))
    assert LOWER_BOUNDS[0] == MIN_FACTOR
    assert LOWER_BOUNDS[-1] < MAX_FACTOR


def test_the_table_in_the_documentation_is_that_of_the_code():
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## Speed\n")[1].split("\n## ")[0]

    rows = re.findall(r"(?m)^\| ([\d.]+) \| (\d) \|$", section)

    assert [(float(factor), int(speed)) for factor, speed in rows] == [
        (bound, speed) for speed, bound in enumerate(LOWER_BOUNDS)
    ]
