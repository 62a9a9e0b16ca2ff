"""`tests/data/text_cases.json` through the Python function; `tests/server` sends it to a server.

Each case is a text `in` and what must hold of it. Keys, all optional:
    out: the normalised text, a final stop aside.
    contains: pieces that must be in it, in any letter case.
    must_not_match: a regular expression that must not be found in it.
    same_as: another text that must give the same.
    error: the status that it is refused with.
    speakable: the result is not empty.
    segments: how many segments it is cut into.
    tags: the control tags in it, in order.
    han_digits_after: [word, n]: after the word come exactly n Chinese digits.
    no_reserved_ids: its ids hold no reserved token but those of the prompt.
    speaker_slots: how many speaker slots its prompt holds.
    lang: the language asked for.
    homophones: the homophone map is on, which is the default.
    note: for the reader.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chattts_triton.constants import DEFAULT_SPEED
from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.normalizer import NormalizedText, TextNormalizer
from chattts_triton.text.prompt import END, SPEAKER, START, PromptEncoder
from chattts_triton.text.tags import TAGS

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "text_cases.json").read_text(encoding="utf-8")
)
KNOWN_KEYS = {
    *("id", "in", "out", "contains", "must_not_match", "same_as", "error", "speakable", "segments"),
    *("tags", "han_digits_after", "no_reserved_ids", "speaker_slots", "lang", "homophones", "note"),
}
HAN_DIGITS = "零一二三四五六七八九幺"


@pytest.fixture(scope="module")
def encoder(preprocess_directory: Path, special_ids: dict[str, int]) -> PromptEncoder:
    return PromptEncoder(preprocess_directory / "tokenizer.json", special_ids)


def normalize(normalizer: TextNormalizer, case: dict[str, Any], text: str) -> NormalizedText:
    return normalizer.normalize(text, case.get("lang"), homophones=case.get("homophones", True))


def having(*keys: str) -> Any:
    cases = [case for case in CASES if set(keys) & case.keys()]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def test_every_key_of_the_cases_is_known_and_each_case_checks_something() -> None:
    assert {key for case in CASES for key in case} <= KNOWN_KEYS
    assert all(case.keys() - {"id", "in", "note", "lang", "homophones"} for case in CASES)


@having("out")
def test_the_text_becomes_what_the_case_says(
    normalizer: TextNormalizer, case: dict[str, Any]
) -> None:
    got = normalize(normalizer, case, case["in"]).text

    assert got.rstrip("。.") == case["out"].rstrip("。.")


@having("contains", "must_not_match", "same_as", "speakable")
def test_the_text_holds_what_the_case_says(
    normalizer: TextNormalizer, case: dict[str, Any]
) -> None:
    got = normalize(normalizer, case, case["in"]).text

    for piece in case.get("contains", []):
        assert piece.lower() in got.lower()
    if "must_not_match" in case:
        assert not re.search(case["must_not_match"], got)
    if "same_as" in case:
        assert got == normalize(normalizer, case, case["same_as"]).text
    assert any(map(str.isalnum, got))


@having("han_digits_after")
def test_the_digits_are_read_one_by_one(normalizer: TextNormalizer, case: dict[str, Any]) -> None:
    word, count = case["han_digits_after"]

    got = normalize(normalizer, case, case["in"]).text

    assert re.search(rf"{word}[{HAN_DIGITS}]{{{count}}}(?![{HAN_DIGITS}])", got)


@having("segments", "tags")
def test_segments_and_tags_are_those_of_the_case(
    normalizer: TextNormalizer, case: dict[str, Any]
) -> None:
    got = normalize(normalizer, case, case["in"])

    assert len(got.segments) == case.get("segments", len(got.segments))
    assert list(got.tags) == case.get("tags", list(got.tags))
    assert sum(segment.text.count("[") for segment in got.segments) == len(got.tags)


@having("error")
def test_the_text_is_refused(normalizer: TextNormalizer, case: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"^TEXT: ") as caught:
        normalize(normalizer, case, case["in"])

    assert case["error"] == "INVALID_ARGUMENT"
    assert caught.value.triton_code == "INVALID_ARG"


@having("no_reserved_ids", "speaker_slots")
def test_the_prompt_holds_its_own_reserved_tokens_and_no_others(
    normalizer: TextNormalizer,
    encoder: PromptEncoder,
    special_ids: dict[str, int],
    case: dict[str, Any],
) -> None:
    for segment in normalize(normalizer, case, case["in"]).segments:
        ids = encoder.encode(segment.text, DEFAULT_SPEED)

        assert ids.count(special_ids[SPEAKER]) == case.get("speaker_slots", 1)
        reserved = {number for token, number in special_ids.items() if token not in TAGS}
        own = [special_ids[token] for token in (START, SPEAKER, END)]
        assert [i for i in ids if i in reserved - {special_ids["[UNK]"]}] == own
