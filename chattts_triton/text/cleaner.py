"""Text as it was sent -> text of the characters that the model reads; docs/text.md is its policy.

Adds no mark, space or tag to a text that has none of its own.
"""

from __future__ import annotations

import re
from typing import Literal, NewType

from chattts_triton.errors import InvalidRequestError, shorten
from chattts_triton.text.characters import Kind, classify
from chattts_triton.text.tags import Piece, split_tags

Language = Literal["zh", "en"]
SpeakableText = NewType("SpeakableText", str)
"""Text that went through `clean`: every "[" in it belongs to a control tag."""

MAX_TEXT_BYTES = 20_000  # 5,000 characters of any kind; refused before it is looked at
MAX_WORD_CHARACTERS = 100  # of more, BERT's WordPiece makes one unknown id

_LONG_WORD = re.compile(rf"[A-Za-z0-9]{{{MAX_WORD_CHARACTERS}}}(?=[A-Za-z0-9])")
_STRENGTH = {Kind.STOP: 4, Kind.COMMA: 3, Kind.LINE_BREAK: 2, Kind.PAUSE: 1, Kind.HYPHEN: 1}
_STANDS_AT_END = (Kind.STOP, Kind.COMMA)
_FORMS: dict[tuple[Language, bool], str] = {
    ("zh", True): "。",
    ("zh", False): "，",
    ("en", True): ".",
    ("en", False): ",",
}

_Run = list[tuple[Kind, str]]  # what stands between two words: marks, gaps, spaces


def decode_text(raw: bytes, field: str = "TEXT") -> str:
    """Strict UTF-8.

    Raises:
        InvalidRequestError: `raw` is too long or no UTF-8.
    """
    if len(raw) > MAX_TEXT_BYTES:
        raise InvalidRequestError(f"{field}: got {len(raw)} bytes, wanted at most {MAX_TEXT_BYTES}")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{field}: got bytes that are not UTF-8 (at byte {error.start}), wanted UTF-8"
        ) from None


def clean(
    text: str, language: Language | None = None, field: str = "TEXT", *, shown: str | None = None
) -> SpeakableText:
    """Map a text to Han, A-Z, a-z, 0-9, apostrophes in words, `，。、,.`, single spaces and tags.

    Args:
        text: Any string.
        language: Chooses 。 or . for a mapped mark, where no letter of the text tells.
        field: Named in the error.
        shown: What the error quotes in the place of `text`.

    Raises:
        InvalidRequestError: There is nothing to speak in it.
    """
    pieces = split_tags(text)
    cleaned = _LONG_WORD.sub(r"\g<0> ", _write(pieces, language))
    if not cleaned:
        got = shorten(text if shown is None else shown)
        raise InvalidRequestError(
            f"{field}: got {got}, which has no speakable text; "
            "wanted Han characters, Latin letters or digits"
        )
    return SpeakableText(cleaned)


def _write(pieces: list[Piece], asked: Language | None) -> str:
    """The cleaned text; empty if it holds nothing but tags, marks and what is dropped."""
    language = _first_language(pieces) or asked or "zh"
    written: list[str] = []
    run: _Run = []
    is_speakable = False

    def write(item: str) -> None:
        if run:
            written.append(_between(run, written[-1] if written else "", item, language))
            run.clear()
        written.append(item)

    for piece in pieces:
        if piece.is_tag:
            write(piece.text)
            continue
        for char in piece.text:
            kind, item = classify(char)
            if kind in (Kind.HAN, Kind.WORD):
                write(item)
                is_speakable = True
                language = _language_of(kind, item) or language
            elif kind is not Kind.NOTHING:
                run.append((kind, item))
    write("")
    return "".join(written) if is_speakable else ""


def _first_language(pieces: list[Piece]) -> Language | None:
    for piece in pieces:
        for char in "" if piece.is_tag else piece.text:
            if language := _language_of(*classify(char)):
                return language
    return None


def _language_of(kind: Kind, item: str) -> Language | None:
    if kind is Kind.HAN:
        return "zh"
    return "en" if kind is Kind.WORD and item.isalpha() else None


def _between(run: _Run, before: str, after: str, language: Language) -> str:
    """What a run of marks, gaps and spaces becomes; `before` and `after` are "" at the ends."""
    if not before:
        return ""
    kinds = {kind for kind, _ in run}
    is_within_word = _is_word(before[-1:]) and _is_word(after[:1])
    if len(run) == 1 and is_within_word:
        if kinds == {Kind.HYPHEN}:
            return " "
        if kinds == {Kind.APOSTROPHE} and after[0].isalpha():
            return "'"
    mark = _strongest_mark(run, language, is_end=not after)
    if not after:
        return mark
    has_space = bool(kinds & {Kind.SPACE, Kind.LINE_BREAK})
    if mark:
        # Only a mark that stood alone between two words stays without a space: e.g, a.com.
        is_alone = len(run) == 1 and run[0][1] == mark
        return mark + " " * (
            mark.isascii() and (has_space or (_is_word(after[0]) and not is_alone))
        )
    return " " * (has_space or is_within_word)


def _strongest_mark(run: _Run, language: Language, *, is_end: bool) -> str:
    """One mark for the whole run: the first of the strongest in it, or ""."""
    marks = [
        (kind, written)
        for kind, written in run
        if kind in _STRENGTH and (kind in _STANDS_AT_END or not is_end)
    ]
    if not marks:
        return ""
    kind, written = max(marks, key=lambda mark: _STRENGTH[mark[0]])
    return written or _FORMS[language, kind in (Kind.STOP, Kind.LINE_BREAK)]


def _is_word(char: str) -> bool:
    return char.isascii() and char.isalnum()
