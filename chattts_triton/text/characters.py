"""What each Unicode character is to the cleaner; docs/text.md shows the same table."""

from __future__ import annotations

import unicodedata
from enum import Enum
from functools import lru_cache

FIRST_HAN, LAST_HAN = "\u4e00", "\u9fff"  # the ideographs that ChatTTS was trained on


class Kind(Enum):
    """The role of a character; what a run of marks, gaps and spaces becomes is `cleaner`'s rule."""

    HAN = "han"
    WORD = "word"  # ASCII letters and digits
    STOP = "stop"  # ends a sentence
    COMMA = "comma"
    PAUSE = "pause"  # a comma, but only between two words
    HYPHEN = "hyphen"  # a space within a word, else a pause
    APOSTROPHE = "apostrophe"  # itself within a word, else a gap
    LINE_BREAK = "line break"
    SPACE = "space"
    GAP = "gap"  # nothing, or a space where two Latin words would grow together
    NOTHING = "nothing"


# kind, what it is written as ("" = chosen by the language around it), characters
TABLE: tuple[tuple[Kind, str, str], ...] = (
    (Kind.STOP, "。", "。｡"),
    (Kind.STOP, ".", ".．"),
    (Kind.STOP, "", "！!？?…⋯‥‼⁇⁈⁉‽"),
    (Kind.COMMA, "，", "，"),
    (Kind.COMMA, ",", ","),
    (Kind.COMMA, "、", "、､"),
    (Kind.COMMA, "", "：:；;"),
    (Kind.PAUSE, "", "()（）{}｛｝〔〕—–―‒⸺⸻"),
    (Kind.HYPHEN, "", "-‐‑−－"),
    (Kind.APOSTROPHE, "'", "'’‘ʼ＇´"),
    (Kind.LINE_BREAK, "", "\n\r\v\f\x85\u2028\u2029"),
    (Kind.SPACE, " ", "\t"),
    (Kind.GAP, "", '《》〈〉「」『』【】〖〗｢｣“”„‟"＂«»‹›¿¡[]［］<>＜＞·・•'),
    (Kind.GAP, "", "*#_`~＊＃＿｀～〜"),
    (Kind.HAN, "零", "〇"),
)

# Latin letters that Unicode does not take apart.
LATIN_LETTERS: dict[str, str] = {
    "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "TH", "ł": "l", "Ł": "L", "ı": "i",
}  # fmt: skip

_EXPONENTS = frozenset("¹²³⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")  # 10² is not 102

_LISTED = {char: (kind, written) for kind, written, chars in TABLE for char in chars}


@lru_cache(maxsize=1 << 16)
def classify(char: str) -> tuple[Kind, str]:
    """The kind of one character, and what it is written as.

    A STOP or COMMA written as "" takes the form of the language around it.
    """
    if FIRST_HAN <= char <= LAST_HAN:
        return Kind.HAN, char
    if char in _LISTED:
        return _LISTED[char]
    category = unicodedata.category(char)
    if category[0] == "L" or category in ("Nd", "Nl"):
        return _classify_letter(char)
    if category == "Zs":
        return Kind.SPACE, " "
    if category[0] == "M" or category == "Cf":
        return Kind.NOTHING, ""
    if category[0] == "P":
        return _classify_punctuation(char)
    return Kind.GAP, ""


def _classify_letter(char: str) -> tuple[Kind, str]:
    """Full-width, accented and styled letters and digits are the plain ones behind them."""
    plain = LATIN_LETTERS.get(char) or "".join(
        part for part in unicodedata.normalize("NFKD", char) if unicodedata.category(part) != "Mn"
    )
    if plain.isascii() and plain.isalnum():
        return Kind.WORD, plain
    if FIRST_HAN <= plain <= LAST_HAN and len(plain) == 1:  # a compatibility ideograph
        return Kind.HAN, plain
    return Kind.GAP, ""


def _classify_punctuation(char: str) -> tuple[Kind, str]:
    """Small and vertical forms are the mark behind them, in the form of the language around."""
    kind, written = _LISTED.get(unicodedata.normalize("NFKC", char), (Kind.GAP, ""))
    return kind, "" if written.isascii() else written


def fold(text: str) -> str:
    """Write letters, digits, ① and ½ in their plain form and drop what has the kind NOTHING."""
    if text.isascii():
        return text
    written: list[str] = []
    for char in text:
        plain = _fold_character(char)
        is_number = char.isnumeric() and not char.isdecimal() and char != plain
        if is_number and written and written[-1][-1:].isdigit():
            plain = f" {plain}"  # 1½ is 1 1/2
        written.append(plain)
    return "".join(written)


@lru_cache(maxsize=1 << 16)
def _fold_character(char: str) -> str:
    kind, written = classify(char)
    if kind in (Kind.HAN, Kind.WORD, Kind.NOTHING):
        return written
    if unicodedata.category(char) == "No" and char not in _EXPONENTS:
        plain = unicodedata.normalize("NFKC", char).replace("\u2044", "/")
        if plain.isascii() and any(map(str.isdigit, plain)):
            return plain
    return char
