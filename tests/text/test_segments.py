import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.cleaner import clean
from chattts_triton.text.segments import (
    ABBREVIATIONS,
    COMMA_PAUSE_MS,
    MAX_LENGTH,
    MIN_LENGTH,
    NO_MARK_PAUSE_MS,
    STOP_PAUSE_MS,
    TARGET_LENGTH,
    dominant_language,
    split_segments,
    spoken_length,
)
from chattts_triton.text.tags import TAGS

LONG = "春天的花开在山坡上"  # 9 characters


def split(text: str) -> list[str]:
    return [segment.text for segment in split_segments(clean(text))]


@pytest.mark.parametrize(
    "text",
    ["好", "你好，世界。", "Yes.", "[laugh]你好[lbreak]", "今天下雨。", "a[uv_break]b", LONG * 11],
)
def test_a_short_text_is_one_segment_unchanged(text: str) -> None:
    assert split(text) == [text]


def test_sentences_are_joined_up_to_the_target() -> None:
    sentence = f"{LONG}{LONG}。"

    assert split(sentence * 5) == [sentence * 2, sentence * 2, sentence]


def test_a_sentence_up_to_the_limit_is_kept_whole() -> None:
    text = "，".join([LONG] * 11) + "。"

    assert split(text) == [text]
    assert TARGET_LENGTH < spoken_length(text) <= MAX_LENGTH


def test_a_longer_sentence_is_cut_at_its_commas() -> None:
    text = "，".join([LONG] * 15) + "。"

    got = split(text)

    assert "".join(got) == text
    assert [segment[-1] for segment in got] == ["，", "，", "。"]
    assert all(spoken_length(segment) <= TARGET_LENGTH for segment in got)


def test_text_without_marks_is_cut_at_spaces_above_the_limit() -> None:
    words = "the quick brown fox jumps over the lazy dog again and again " * 10

    got = split(words)

    assert " ".join(got) == words.strip()
    assert len(got) > 1
    assert all(spoken_length(segment) <= TARGET_LENGTH for segment in got)


def test_b_39_three_hundred_characters_without_any_mark_are_cut_evenly() -> None:
    text = LONG * 33

    got = split(text)

    assert "".join(got) == text
    assert {len(segment) for segment in got} == {50, 47}
    assert split_segments(clean(text))[0].pause_ms == NO_MARK_PAUSE_MS


def test_b_62_line_breaks_between_sentences_change_nothing() -> None:
    sentences = [f"{LONG}{LONG}。"] * 4

    assert split("\n".join(sentences)) == split("".join(sentences))


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. J. K. Rowling vs. Prof. Lee.",
        "We work in the U.S. and the E.U. e.g. at Foo Inc. in Oct. or Nov. only.",
        "Use a.b.c and see foo.bar, etc. as before.",
    ],
)
def test_an_abbreviation_or_a_name_ends_no_sentence(text: str) -> None:
    filler = "and we all go on talking about this and that for quite a long time "

    for segment in split(f"{filler * 2}{text} {filler * 2}"):
        assert not re.search(r"\b(Dr|Mr|J|K|vs|Prof|U\.S|E\.U|e\.g|Inc|Oct|Nov|etc)\.$", segment)


def test_a_sentence_may_end_in_the_word_i() -> None:
    filler = "and we all go on talking about this and that for quite a long time"

    assert len(split(f"{filler} and {filler} and I. {filler} and {filler}.")) == 2


def test_abbreviations_are_in_lower_case() -> None:
    assert all(word == word.lower() and word.isalpha() for word in ABBREVIATIONS)


def test_a_very_short_sentence_joins_its_neighbour_beyond_the_target() -> None:
    sentence = "，".join([LONG] * 6) + "。"

    assert split(f"好。{sentence}") == [f"好。{sentence}"]
    assert split(f"{sentence}好。") == [f"{sentence}好。"]
    assert spoken_length(sentence) > TARGET_LENGTH


def test_sounds_stay_with_the_sentence_before_them_and_no_segment_is_tags_alone() -> None:
    sentence = f"{LONG}{LONG}{LONG}。"

    got = split(f"[laugh]{sentence}[laugh][lbreak]{sentence}[speed_3]{sentence}[uv_break]")

    assert got == [
        f"[laugh]{sentence}[laugh][lbreak]",
        sentence,
        f"[speed_3]{sentence}[uv_break]",
    ]


def test_pauses_follow_the_closing_mark_and_the_last_has_none() -> None:
    clause = LONG * 6

    segments = split_segments(clean(f"{clause}，{clause}、{clause}。[laugh]{clause}。"))

    assert [segment.pause_ms for segment in segments] == [
        COMMA_PAUSE_MS,
        COMMA_PAUSE_MS,
        STOP_PAUSE_MS,
        0,
    ]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("你好，世界。", 4),
        ("the world", 3),
        ("refinement", 4),
        ("[laugh]好[uv_break]", 1),
        ("a", 1),
    ],
)
def test_the_length_counts_han_characters_and_thirds_of_words(text: str, length: int) -> None:
    assert spoken_length(text) == length


@pytest.mark.parametrize(
    ("text", "asked", "wanted"),
    [
        ("你好", "en", "zh"),
        ("hello", "zh", "en"),
        ("我爱AI", None, "zh"),
        ("The word 好 is Chinese", None, "en"),
        ("[laugh]你", None, "zh"),
    ],
)
def test_the_language_is_that_of_most_of_the_text(text: str, asked: object, wanted: str) -> None:
    assert dominant_language(text, asked) == wanted  # type: ignore[arg-type]


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            ["好", LONG, "，", "。", "、", " ", ". ", ", ", "word", "a", "it's", "Dr. ", *TAGS]
        ),
        max_size=60,
    ).map("".join)
)
def test_no_segment_is_too_long_or_without_need_too_short(text: str) -> None:
    try:
        cleaned = clean(text)
    except InvalidRequestError:
        return

    segments = split_segments(cleaned)

    assert "".join(s.text for s in segments).replace(" ", "") == cleaned.replace(" ", "")
    for before, after in pairwise(segments):
        lengths = spoken_length(before.text), spoken_length(after.text)
        assert max(lengths) <= MAX_LENGTH
        assert sum(lengths) > (MAX_LENGTH if min(lengths) < MIN_LENGTH else TARGET_LENGTH)
