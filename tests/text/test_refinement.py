"""When a refined text may be spoken in place of the user's own."""

from __future__ import annotations

import pytest

from chattts_triton.text.refinement import is_faithful

TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"


@pytest.mark.parametrize(
    "refined",
    [
        TEXT,
        "四 川 美 食 确 实 以 辣 闻 名 [uv_break] ， 但 也 有 不 辣 的 选 择 。",
        "四川美食嗯确实[uv_break]以辣闻名，就是但也有不辣的选择[laugh]。",
        "四川美食确实以辣闻名但也有不辣选择",
    ],
)
def test_pauses_fillers_and_a_lost_word_are_accepted(refined):
    assert is_faithful(TEXT, refined)


@pytest.mark.parametrize(
    "refined",
    [
        "",
        "[uv_break]",
        "四川美食确实以辣闻名。",
        "今天天气怎么样啊，我们一起出去走走吧好不好呀你说。",
        TEXT * 2,
        f"{TEXT}[Ptts]",
        f"{TEXT}[spk_emb]",
    ],
)
def test_lost_changed_or_repeated_text_and_reserved_tokens_are_refused(refined):
    """B-46."""
    assert not is_faithful(TEXT, refined)


def test_english_words_count_as_words_whatever_their_case():
    assert is_faithful("The book that I bought", "the book [uv_break] that i like bought")
    assert not is_faithful("The book that I bought", "a book you sold")
