"""docs/text.md says what the code does, row by row."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from chattts_triton.config import MAX_CHARACTERS, MAX_TEXT_IDS
from chattts_triton.constants import DEFAULT_SPEED, MAX_NEW_CODES, MAX_SPEED, MIN_SPEED
from chattts_triton.sampling_params import MAX_SEED, RANGES, SamplingParams
from chattts_triton.serving.options import TRITON_PARAMETERS
from chattts_triton.tensors import OPTIONS
from chattts_triton.text.characters import LATIN_LETTERS, TABLE, Kind, classify
from chattts_triton.text.cleaner import MAX_TEXT_BYTES, MAX_WORD_CHARACTERS
from chattts_triton.text.figure_patterns import KINDS
from chattts_triton.text.normalizer import TextNormalizer
from chattts_triton.text.segments import (
    COMMA_PAUSE_MS,
    MAX_LENGTH,
    MIN_LENGTH,
    STOP_PAUSE_MS,
    TARGET_LENGTH,
)
from chattts_triton.text.tags import TAGS
from chattts_triton.text.units import ADDRESS_SIGNS, CURRENCIES, OPERATORS, SCALES, UNITS

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8")


def table(heading: str, *, index: int = 0) -> list[list[str]]:
    """The body of a section's table, cell by cell."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?m)(?:^\|.*\|\n?)+", section)
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in tables[index].splitlines()[2:]
    ]


def characters(cell: str) -> list[str]:
    """`a b` U+000A -> ["a", "b", newline]."""
    points = re.findall(r"U\+([0-9A-F]{4,6})", cell)
    literal = "".join(re.findall("`(.*)`", cell)).split(" ")
    return [char for char in literal if char] + [chr(int(point, 16)) for point in points]


def test_listed_characters_are_those_of_the_code() -> None:
    documented = [
        (kind, frozenset(characters(chars)), written.strip("`"))
        for kind, chars, written in table("Listed characters")
    ]

    assert documented == [
        (kind.value, frozenset(chars), written.strip()) for kind, written, chars in TABLE
    ]


def test_spelled_out_letters_are_those_of_the_code() -> None:
    documented = {
        letter: spelling
        for letters, spellings in table("Listed characters", index=1)
        for letter, spelling in zip(characters(letters), characters(spellings), strict=True)
    }

    assert documented == LATIN_LETTERS


@pytest.mark.parametrize(("kind", "cell"), [row[1:] for row in table("All other characters")])
def test_examples_of_each_class_have_its_kind(kind: str, cell: str) -> None:
    examples = characters(cell)

    assert len(examples) >= 2
    assert {char: classify(char)[0] for char in examples} == dict.fromkeys(examples, Kind(kind))


def test_every_kind_but_the_internal_ones_is_documented() -> None:
    documented = {row[0] for row in table("Listed characters")}
    documented |= {row[1] for row in table("All other characters")}

    assert documented == {kind.value for kind in Kind}


@pytest.mark.parametrize(("text", "wanted"), table("Examples"))
def test_examples_become_what_the_page_says(
    normalizer: TextNormalizer, text: str, wanted: str
) -> None:
    assert normalizer.normalize(text[1:-1]).text == wanted[1:-1]


FIGURES = table("Figures")


def test_every_kind_of_figure_is_documented_in_its_order() -> None:
    assert [row[0] for row in FIGURES] == list(KINDS)


@pytest.mark.parametrize("cell", [cell for row in FIGURES for cell in row[1:] if cell])
def test_figures_become_what_the_page_says(normalizer: TextNormalizer, cell: str) -> None:
    text, wanted = (part.strip("`") for part in cell.split(" → "))

    assert normalizer.normalize(text).text == wanted


@pytest.mark.parametrize(
    ("name", "signs"),
    [
        ("units", UNITS),
        ("currencies", CURRENCIES),
        ("scales of money", SCALES),
        ("operators", OPERATORS),
        ("signs of an address", ADDRESS_SIGNS),
    ],
)
def test_the_signs_beside_figures_are_those_of_the_code(
    name: str, signs: Mapping[str, object]
) -> None:
    documented = dict(table("Figures", index=1))

    assert documented[name].strip("`").split(" ") == list(signs)


def test_the_lengths_and_pauses_of_segments_are_those_of_the_code() -> None:
    section = PAGE.split("\n## Segments\n")[1].split("\n## ")[0]

    for text in (
        f"joined up to a length of {TARGET_LENGTH}, shorter ones than {MIN_LENGTH} up to",
        f"longer than {MAX_LENGTH} is cut evenly",
        f"{STOP_PAUSE_MS} ms after `。` and `.`, {COMMA_PAUSE_MS} ms after `，` `、` `,`",
    ):
        assert text in section


def test_the_reviewed_paragraph_is_read_as_the_page_says(normalizer: TextNormalizer) -> None:
    section = PAGE.split("\n## A paragraph, reviewed\n")[1].split("\n## ")[0]
    paragraph = re.findall("(?m)^> (.*)$", section)[0]

    segments = normalizer.normalize(paragraph).segments

    assert re.findall(r"(?m)^\d+\. (.*)$", section) == [segment.text for segment in segments]


def test_control_tags_are_those_of_the_code() -> None:
    documented: set[str] = set()
    for cell, _ in table("Control tags"):
        for name, first, last in re.findall(r"`\[(\w+)_(\d)\]` to `\[\1_(\d)\]`", cell):
            documented |= {f"[{name}_{level}]" for level in range(int(first), int(last) + 1)}
        documented |= set(re.findall(r"\[[a-z_]+\]", cell))

    assert documented == set(TAGS)


def test_options_and_their_bounds_are_those_of_the_code() -> None:
    options = {name: (values, default) for name, values, default in table("Options")}

    assert list(options) == [spec.name for spec in OPTIONS]
    for name in ("TEMPERATURE", "TOP_P", "TOP_K", "REPETITION_PENALTY", "MAX_NEW_TOKENS"):
        low, high = (float(bound) for bound in options[name][0].split(" to "))
        assert (low, high) == RANGES[name]
    for name in ("TEMPERATURE", "TOP_P", "TOP_K", "REPETITION_PENALTY"):
        assert float(options[name][1]) == getattr(SamplingParams, name.lower())
    assert options["SEED"][0].startswith(f"0 to {MAX_SEED} ")
    assert options["SPEED"] == (f"{MIN_SPEED} to {MAX_SPEED}", str(DEFAULT_SPEED))
    assert options["MAX_NEW_TOKENS"][1].endswith(f"at most {MAX_NEW_CODES}")


def test_the_limits_of_a_text_are_those_of_the_code() -> None:
    assert f"more than {MAX_TEXT_BYTES:,} of them, or more than {MAX_CHARACTERS:,}" in PAGE
    assert f"more than {MAX_TEXT_IDS:,} ids" in PAGE
    assert f"more than {MAX_WORD_CHARACTERS} letters" in PAGE


def test_the_parameters_of_triton_are_named() -> None:
    assert {name for name in TRITON_PARAMETERS if f"`{name}`" not in PAGE} == set()
