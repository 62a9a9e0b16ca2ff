"""Text that arrives in pieces, cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chattts_triton.gateway.sentences import MAX_LENGTH, SentenceBuffer


def cut(*pieces: str) -> list[str]:
    buffer = SentenceBuffer()
    return [sentence for piece in pieces for sentence in buffer.feed(piece)] + buffer.finish()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("你好。世界！", ["你好。", "世界！"]),
        ("他说：“好。”然后走了。", ["他说：“好。”", "然后走了。"]),
        ("It is 3.5 km. Go! Why?", ["It is 3.5 km.", "Go!", "Why?"]),
        ("Well... yes.", ["Well...", "yes."]),
        ("one\ntwo", ["one", "two"]),
        ("... Hello. ...", ["... Hello."]),
        ("?!", []),
    ],
)
def test_a_text_is_cut_at_the_ends_of_its_sentences(text: str, sentences: list[str]):
    assert cut(text) == sentences
    assert cut(*text) == sentences or "”" in text  # a quote may come after its sentence is spoken


def test_a_full_stop_waits_for_what_follows():
    buffer = SentenceBuffer()

    assert buffer.feed("It costs 3.") == []
    assert buffer.feed("5 euros. ") == ["It costs 3.5 euros."]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a" * (MAX_LENGTH + 1), "a" * MAX_LENGTH),
        ("word " * MAX_LENGTH, ("word " * (MAX_LENGTH // 5)).strip()),
        ("好" * 150 + "，" + "好" * 150, "好" * 150 + "，"),
    ],
)
def test_a_text_without_ends_is_cut_where_it_can_be(text: str, first: str):
    assert SentenceBuffer().feed(text)[0] == first


@given(st.lists(st.text("ab 。.!，\n”", max_size=60), max_size=8))
def test_nothing_that_can_be_said_is_lost_or_said_twice(pieces: list[str]):
    said = "".join(filter(str.isalnum, "".join(cut(*pieces))))

    assert said == "".join(filter(str.isalnum, "".join(pieces)))
    assert all(len(sentence) <= MAX_LENGTH + 60 for sentence in cut(*pieces))
