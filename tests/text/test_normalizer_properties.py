import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.characters import fold
from chattts_triton.text.normalizer import TextNormalizer
from chattts_triton.text.tags import TAGS, split_tags

ALLOWED = re.compile(
    "(?:"
    + "|".join(map(re.escape, TAGS))
    + r"|[\u4e00-\u9fffA-Za-z，。、,. ]|(?<=[A-Za-z])'(?=[A-Za-z]))+"
)
MARKS = [*"，。、,.!?！？：:；;-—~～…()（）[]《》\"'’\n\t /%‰$¥￥€#@&*+×=<>≥≤±°℃²½①_|^"]
FIGURES = ["0", "1", "2", "05", "12", "123", "1234", "2024", "1,234", "3.14", "1234567", "1/2"]
FIGURES += ["12:30", "3:2", "2024-05-06", "5月6日", "2024年", "第2", "90后", "1990s", "5kg", "3%"]
FIGURES += ["010-12345678", "1.2.3", "v2.0", "$5", "1.5米", "No. 5", "5 pm", "www.a.com", "1st"]
WORDS = [
    "你",
    "好",
    "雎",
    "個",
    "年",
    "月",
    "日",
    "号",
    "点",
    "I'm",
    "don't",
    "book",
    "a",
    "B",
    "May",
]
WORDS += [
    "m",
    "kg",
    "am",
    "pm",
    "x",
    "the",
    "Dr",
    "https",
    "million",
    "е",
    "\u0301",
    "\u200b",
    "😀",
    "Ｃ",
]
ANY_TEXT = st.text(max_size=60) | st.lists(
    st.sampled_from([*MARKS, *FIGURES, *WORDS, *TAGS, "[Stts]", "[LAUGH]"]), max_size=25
).map("".join)
PLAIN_WORDS = ["book", "I'm", "don't", "Agent", "weather", "你", "好", "雎", "窈", "天"]
"""Words that are no part of a figure: no unit, month, currency or scale."""
ZH_DIGITS = list("零一二三四五六七八九")
EN_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spoken_words(text: str) -> list[str]:
    plain = "".join(" " if piece.is_tag else piece.text for piece in split_tags(text))
    return re.findall(r"[\u4e00-\u9fff]|[A-Za-z]+", plain)


def is_speakable(text: str) -> bool:
    return any(
        not piece.is_tag and re.search(r"[\u4e00-\u9fffA-Za-z0-9]", fold(piece.text))
        for piece in split_tags(text)
    )


@settings(deadline=None, max_examples=600)
@given(ANY_TEXT)
@example("[laugh]1[laugh]")
@example("5月6日 apples")
def test_any_string_gives_allowed_characters_only_or_is_refused(
    normalizer: TextNormalizer, text: str
) -> None:
    try:
        result = normalizer.normalize(text)
    except InvalidRequestError:
        assert not is_speakable(text)
        return

    assert ALLOWED.fullmatch(result.text)
    assert all(is_speakable(segment.text) for segment in result.segments)


@settings(deadline=None, max_examples=600)
@given(ANY_TEXT)
@example("/www.0")
@example("0www.0")
@example("hi!com")
def test_normalizing_twice_is_once(normalizer: TextNormalizer, text: str) -> None:
    try:
        result = normalizer.normalize(text)
    except InvalidRequestError:
        return

    assert normalizer.normalize(result.text).text == result.text
    for segment in result.segments:
        assert normalizer.normalize(segment.text).text == segment.text


@settings(deadline=None, max_examples=400)
@given(ANY_TEXT)
def test_the_segments_are_the_text(normalizer: TextNormalizer, text: str) -> None:
    try:
        result = normalizer.normalize(text)
    except InvalidRequestError:
        return

    position = 0
    for segment in result.segments:
        found = result.text.find(segment.text, position)
        assert result.text[position:found].strip() == ""
        position = found + len(segment.text)
    assert result.text[position:] == ""
    assert result.segments[-1].pause_ms == 0


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from([*PLAIN_WORDS, *MARKS, *TAGS, "1", "12", "2024", "7654321"])))
def test_every_han_character_and_every_word_beside_figures_is_kept_in_order(
    normalizer: TextNormalizer, pieces: list[str]
) -> None:
    text = " ".join(pieces)
    wanted = spoken_words(text)
    result = normalizer.normalize(f"{text} 。 end", homophones=False)

    position = 0
    for word in wanted:
        found = result.text.find(word, position)
        assert found >= 0, f"{word} is lost"
        position = found + len(word)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="你好天雎窈ab'-.，。! ：《》[]", max_size=40))
def test_every_letter_of_a_text_without_figures_is_kept(
    normalizer: TextNormalizer, text: str
) -> None:
    try:
        result = normalizer.normalize(text, homophones=False)
    except InvalidRequestError:
        return

    assert re.findall(r"[\u4e00-\u9fffA-Za-z]", result.text) == re.findall(
        r"[\u4e00-\u9fffA-Za-z]", text
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([*FIGURES, "个", " ", "，", "元"]), max_size=12).map("".join))
def test_b_03_full_width_digits_are_the_half_width_ones(
    normalizer: TextNormalizer, text: str
) -> None:
    wide = "".join(
        chr(ord(char) + 0xFEE0) if "!" <= char <= "~" and char not in ",'" else char
        for char in text
    )
    assert unicodedata.normalize("NFKC", wide) == unicodedata.normalize("NFKC", text)

    assert normalizer.normalize(f"好，{wide}").text == normalizer.normalize(f"好，{text}").text


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**7), st.sampled_from(["zh", "en"]))
def test_every_digit_of_a_long_run_is_spoken(
    normalizer: TextNormalizer, number: int, language: str
) -> None:
    digits = f"{number}5551234"

    spoken = normalizer.normalize(digits, language).text  # type: ignore[arg-type]

    words = ZH_DIGITS if language == "zh" else EN_DIGITS
    heard = list(spoken) if language == "zh" else spoken.split()
    assert "".join(str(words.index(word)) for word in heard) == digits


def test_lone_surrogates_and_controls_are_dropped(normalizer: TextNormalizer) -> None:
    assert normalizer.normalize("a\ud800好\x00\x1b").text == "a好"
    with pytest.raises(InvalidRequestError, match="no speakable text"):
        normalizer.normalize("\ud800")
