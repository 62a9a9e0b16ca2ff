import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.cleaner import MAX_TEXT_BYTES, clean, decode_text
from chattts_triton.text.tags import TAGS, split_tags

ALLOWED = re.compile(
    "(?:"
    + "|".join(map(re.escape, TAGS))
    + r"|[\u4e00-\u9fffA-Za-z0-9，。、,. ]|(?<=[A-Za-z0-9])'(?=[A-Za-z]))+"
)
ANY_TEXT = st.text(max_size=60) | st.lists(
    st.sampled_from(
        [
            *"你好ab1 ,.，。、!?！？：;-—()（）[]《》\"'’…\n*_é\u0301\u200b😀Ｃ",
            *TAGS,
            "[Stts]",
            "[LAUGH]",
            "Ab",
        ]
    ),
    max_size=30,
).map("".join)

CASES = [
    ("B-04", 'abb一样，246一样&（*"', "abb一样，246一样"),
    ("B-07", "口味温和[uv_break]，也很受欢迎？", "口味温和[uv_break]，也很受欢迎。"),
    ("B-08", "**重点**：今天下雨", "重点，今天下雨"),
    ("B-09", "I'm fine, don't worry!", "I'm fine, don't worry."),
    ("B-09 curly", "I’m fine, don’t worry!", "I'm fine, don't worry."),
    ("B-10", "你好😀世界", "你好世界"),
    (
        "B-14",
        "想喝纯正咖啡？您可以来阿宕咖啡。这里的每一杯咖啡！都是艺术品。",
        "想喝纯正咖啡。您可以来阿宕咖啡。这里的每一杯咖啡。都是艺术品。",
    ),
    (
        "B-16",
        "第一个例子是，The book that I bought yesterday is interesting，我昨天买的书很有趣。",
        "第一个例子是，The book that I bought yesterday is interesting，我昨天买的书很有趣。",
    ),
    ("B-19", "price[1 and the rest of the sentence", "price 1 and the rest of the sentence"),
    ("B-19 tag", "[laugh", "laugh"),
    ("B-20 digits", "数组[0]等于5", "数组0等于5"),
    ("B-20 words", "see [citation needed] here", "see citation needed here"),
    ("B-20 reserved", "[Ptts]你好[Ebreak]", "Ptts你好Ebreak"),
    ("B-21", "你好[spk_emb]世界", "你好spk emb世界"),
    (
        "B-28",
        "What is [uv_break]your favorite english food?[laugh][lbreak]",
        "What is [uv_break]your favorite english food.[laugh][lbreak]",
    ),
    ("B-29 case", "[LAUGH]hi", "[laugh]hi"),
    ("B-29 unknown", "[cough]hi", "cough hi"),
    ("B-29 numbered", "[laugh_0]测试", "[laugh_0]测试"),
    ("B-29 numbered too high", "[laugh_3]测试", "laugh 3测试"),
    ("line breaks", "第一行\n第二行\r\n\r\n第三行，\n第四行\n", "第一行。第二行。第三行，第四行"),
    ("line break in English", "one\ntwo", "one. two"),
    ("line break after a closing bracket", "一（二）\n三", "一，二。三"),
    ("list", "- one\n- two", "one. two"),
    ("zero width within a word", "he\u200bllo", "hello"),
    ("NUL", "a\0b", "a b"),
    ("accents", "Cafe\u0301 na\u00efve Stra\u00dfe", "Cafe naive Strasse"),
    ("hyphen within a word", "state-of-the-art", "state of the art"),
    ("hyphen between words", "foo - bar", "foo, bar"),
    ("hyphen between Han", "你-我", "你，我"),
    ("double hyphen", "foo--bar", "foo, bar"),
    ("decimal point", "3.14和１．５", "3.14和1.5"),
    ("mark before the text", "……你好", "你好"),
    ("mark after a leading tag", "[laugh]，你好", "[laugh]，你好"),
    ("pause at the end", "你好——", "你好"),
    ("own mark at the end", "你好，", "你好，"),
    ("stop is stronger than comma", "你好，！世界", "你好。世界"),
    ("repeated", "你好！！！！世界", "你好。世界"),
    ("quote after a mark", '"Hello," she said."Bye"', "Hello, she said. Bye"),
    ("single quotes", "he said 'hello' twice", "he said hello twice"),
    (
        "apostrophes in no word",
        "'tis don''t students' rock'n'roll",
        "tis don t students rock'n'roll",
    ),
    ("spaces", "  a \t b　你 ", "a b 你"),
    ("full-width space before a mark", "fine ,thank", "fine, thank"),
    ("zero", "二〇二四", "二零二四"),
    ("nested brackets", "[[laugh]]好", "[laugh]好"),
    ("broken tag", "[la\u200bugh]好", "laugh好"),
    ("long s", "[\u017fpeed_5]好", "speed 5好"),
    ("full-width brackets", "［laugh］好", "laugh好"),
    ("other script", "hello привет world", "hello world"),
]


@pytest.mark.parametrize(("text", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_text_becomes_what_the_policy_says(text: str, wanted: str) -> None:
    assert clean(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "!!!", "...", "”", "—", "😀", "[laugh]", "[", "[]", "\u200b", "\0", "я", "㐀"],
)
def test_b_12_text_with_nothing_to_speak_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^TEXT: .*no speakable text"):
        clean(text)


@pytest.mark.parametrize("text", ["8...", "9", "[laugh]1", "a", "好"])
def test_b_11_digits_and_single_characters_are_speakable(text: str) -> None:
    assert any(char.isalnum() for char in clean(text))


@pytest.mark.parametrize(
    ("text", "language", "wanted"),
    [
        ("9!", None, "9。"),
        ("9!", "zh", "9。"),
        ("9!", "en", "9."),
        ("9!你好", "en", "9。你好"),
        ("hi!there", None, "hi. there"),
        ("hi.there", None, "hi.there"),
        ("9!hi!", "zh", "9. hi."),
        ("你好!hi!", "en", "你好。hi."),
        ("[laugh]9！", "en", "[laugh]9."),
        ("价格5!", "en", "价格5。"),
    ],
)
def test_a_mapped_mark_takes_the_language_around_it_then_lang(
    text: str, language: object, wanted: str
) -> None:
    assert clean(text, language) == wanted  # type: ignore[arg-type]


def is_speakable(text: str) -> bool:
    return any(
        not piece.is_tag and re.search(r"[\u4e00-\u9fffA-Za-z0-9]", piece.text)
        for piece in split_tags(text)
    )


@settings(deadline=None, max_examples=400)
@given(ANY_TEXT)
def test_any_string_gives_allowed_characters_and_cleaning_twice_is_once(text: str) -> None:
    try:
        cleaned = clean(text)
    except InvalidRequestError:
        assert not is_speakable(text)
        return

    assert ALLOWED.fullmatch(cleaned)
    assert is_speakable(cleaned)
    assert cleaned == cleaned.strip()
    assert "  " not in cleaned
    assert not re.search("[，。、,.] ?[，。、,.]", cleaned)
    assert clean(cleaned) == cleaned


@settings(deadline=None, max_examples=300)
@given(ANY_TEXT)
def test_every_han_character_and_every_latin_word_is_kept_in_order(text: str) -> None:
    plain = "".join(" " if piece.is_tag else piece.text for piece in split_tags(text))
    wanted = re.findall(r"[\u4e00-\u9fff]|[A-Za-z0-9]+", plain)

    cleaned = clean(text) if wanted else ""

    position = 0
    for word in wanted:
        found = cleaned.find(word, position)
        assert found >= 0, f"{word} is lost"
        position = found + len(word)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(["I'm", "don't", "book", "你", "A1"]), min_size=1, max_size=9))
def test_words_keep_their_spaces(words: list[str]) -> None:
    assert clean(" ".join(words)) == " ".join(words)


@settings(deadline=None)
@given(st.text(alphabet="Ｃｃ０９１８Ａｚ", min_size=1))
def test_b_03_full_width_letters_and_digits_are_the_half_width_ones(text: str) -> None:
    assert clean(text) == clean(unicodedata.normalize("NFKC", text))


def test_b_28_a_text_without_marks_gets_none() -> None:
    assert clean("今天天气很好") == "今天天气很好"
    assert clean("the weather is fine") == "the weather is fine"


def test_a_word_longer_than_the_tokenizer_takes_is_cut() -> None:
    assert clean("a" * 250) == " ".join(["a" * 100, "a" * 100, "a" * 50])
    assert clean("a" * 100) == "a" * 100


@settings(deadline=None)
@given(st.binary(max_size=20))
def test_b_66_any_bytes_are_decoded_exactly_or_refused(raw: bytes) -> None:
    try:
        wanted = raw.decode()
    except UnicodeDecodeError:
        with pytest.raises(InvalidRequestError, match=r"^TEXT: got bytes that are not UTF-8"):
            decode_text(raw)
    else:
        assert decode_text(raw) == wanted


@pytest.mark.parametrize("raw", [b"\xff\xfe\x41", b"\xed\xa0\x80", "你".encode()[:2], b"\xc0\x80"])
def test_b_66_invalid_utf_8_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"^TEXT\[1\]: got bytes that are not UTF-8"):
        decode_text(raw, "TEXT[1]")


def test_a_text_of_too_many_bytes_is_refused_by_its_size_alone() -> None:
    assert decode_text(b"a" * MAX_TEXT_BYTES) == "a" * MAX_TEXT_BYTES
    with pytest.raises(InvalidRequestError, match=r"^TEXT: got 20001 bytes, wanted at most"):
        decode_text(b"\xff" * (MAX_TEXT_BYTES + 1))
