"""Words are found however they are spelled, and at their own places."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chattts_triton.gateway.protection import folding
from chattts_triton.gateway.protection.folding import fold_characters, fold_letters
from chattts_triton.text import tags

ANY_TEXT = st.text(st.characters(codec=None)) | st.text("aB １Ａ.\u0301\u200b[laugh]坏\ud800ß")


@pytest.mark.parametrize(
    "text",
    [
        "bad",
        "BAD",
        "ｂａｄ",
        "ＢＡＤ",
        "b a d",
        "b.a-d",
        "b\u200ba\u200bd",
        "b\u0301a\u0301d\u0301",
        "bád",
        "𝐛𝐚𝐝",
        "ⓑⓐⓓ",
        "b[uv_break]a[LAUGH]d",
        "b\n\ta　d",
    ],
)
def test_spellings_of_a_word_are_one(text: str):
    assert fold_letters(text).text == "bad"


@pytest.mark.parametrize("text", ["坏人", "坏 人", "坏，人", "坏[uv_break]人", "\uf92f坏人"[1:]])
def test_spellings_of_a_chinese_word_are_one(text: str):
    assert fold_letters(text).text == "坏人"


def test_letters_that_grow_point_to_their_one_place():
    folded = fold_letters("aß㎏")

    assert folded.text == "asskg"
    assert folded.places == [0, 1, 1, 2, 2]
    assert folded.span(1, 3) == (1, 2)


def test_words_begin_and_end_where_something_was_taken_out():
    folded = fold_letters("ab c\u0301d")

    assert folded.is_start == [True, False, True, False]
    assert [folded.is_end(index) for index in range(4)] == [False, True, False, True]


def test_brackets_that_are_no_tag_are_read():
    assert fold_letters("[bad] [laugh]").text == "bad"


def test_patterns_see_spaces_and_marks():
    assert fold_characters("Ｃａｌｌ： １２３-４５\u200b６").text == "call: 123-456"


def test_half_a_pair_can_be_sent_on():
    assert fold_characters("a\ud800b").text.encode() == "a\ufffdb".encode()
    assert fold_letters("a\ud800b").text == "ab"


def test_the_tags_are_those_of_the_text():
    assert set(folding.TAGS) == set(tags.TAGS)


def plainly_folded(text: str) -> str:
    """Without tags, places or a cache."""
    kept = "".join(piece.text for piece in tags.split_tags(text) if not piece.is_tag)
    folded = unicodedata.normalize("NFKD", kept).casefold()
    return "".join(char for char in unicodedata.normalize("NFKD", folded) if char.isalnum())


@given(ANY_TEXT)
def test_any_text_folds_as_it_would_plainly(text: str):
    folded = fold_letters(text)

    # The order of accents is all that the whole text could change, and accents are gone.
    assert folded.text == plainly_folded(text)


@given(ANY_TEXT)
def test_places_are_those_of_the_characters(text: str):
    for fold in (fold_letters, fold_characters):
        folded = fold(text)

        assert len(folded.places) == len(folded.is_start) == len(folded.text)
        assert folded.places == sorted(folded.places)
        for char, place in zip(folded.text, folded.places, strict=True):
            assert char in fold(text[place]).text
