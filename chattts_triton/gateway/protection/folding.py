"""Texts without what hides a word in them, with a way back to the places in the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

# Those of `chattts_triton.text.tags`, which the gateway does not import; a test holds them equal.
TAGS = (
    *("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[laugh]"),
    *(f"[speed_{level}]" for level in range(10)),
    *(f"[oral_{level}]" for level in range(10)),
    *(f"[laugh_{level}]" for level in range(3)),
    *(f"[break_{level}]" for level in range(8)),
)
_TAG = re.compile("|".join(map(re.escape, TAGS)), re.IGNORECASE | re.ASCII)
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass
class FoldedText:
    """A folded text.

    Attributes:
        text: Compatibility forms, such as full-width ones, as plain characters, in lower case and
            without accents; control tags are taken out.
        places: (C,) the index in the original of each of its characters.
        is_start: (C,) whether something was taken out right before the character, so that a word
            begins there.
    """

    text: str = ""
    places: list[int] = field(default_factory=list)
    is_start: list[bool] = field(default_factory=list)

    def is_end(self, index: int) -> bool:
        """Whether a word ends with this character."""
        return index + 1 == len(self.text) or self.is_start[index + 1]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where characters of the folded text, the end not included, are in the original."""
        return self.places[start], self.places[end - 1] + 1


def fold_letters(text: str) -> FoldedText:
    """A text's letters and digits alone: no spaces, no marks."""
    return _fold(text, _letters_of)


def fold_characters(text: str) -> FoldedText:
    """A text with its spaces and marks."""
    return _fold(text, _characters_of)


def _fold(text: str, fold_one: Callable[[str], str]) -> FoldedText:
    folded = FoldedText()
    parts: list[str] = []
    is_start = True
    tag_ends = {tag.start(): tag.end() for tag in _TAG.finditer(text)}
    index = 0
    while index < len(text):
        if index in tag_ends:
            is_start, index = True, tag_ends[index]
            continue
        part = fold_one(text[index])
        for char in part:
            parts.append(char)
            folded.places.append(index)
            folded.is_start.append(is_start)
            is_start = False
        # An accent belongs to its letter, so that it is no end of a word.
        is_start = is_start or (not part and not unicodedata.category(text[index]).startswith("M"))
        index += 1
    folded.text = "".join(parts)
    return folded


@lru_cache(maxsize=1 << 16)
def _letters_of(char: str) -> str:
    return "".join(part for part in _plain(char) if part.isalnum())


@lru_cache(maxsize=1 << 16)
def _characters_of(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cs":  # half a pair; JSON can carry it, UTF-8 cannot
        return _NO_CHARACTER
    if category == "Cf":  # invisible
        return ""
    return "".join(part for part in _plain(char) if not unicodedata.category(part).startswith("M"))


def _plain(char: str) -> str:
    folded = unicodedata.normalize("NFKD", char).casefold()
    return unicodedata.normalize("NFKD", folded)
