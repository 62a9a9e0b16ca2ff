"""Cuts a cleaned text into the pieces that are spoken one by one, at its own marks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from chattts_triton.text.cleaner import Language, SpeakableText
from chattts_triton.text.tags import SOUND_TAGS, split_tags

# Lengths are counted in Han characters: three Latin letters take about the time of one of them.
TARGET_LENGTH = 50  # sentences are joined up to this
MAX_LENGTH = 100  # a longer sentence is cut at its commas, a longer clause at a space
MIN_LENGTH = 3  # what is shorter is joined to its neighbour where that leaves room
LETTERS_PER_HAN = 3

STOP_PAUSE_MS = 300
COMMA_PAUSE_MS = 150
NO_MARK_PAUSE_MS = 0
_PAUSES_MS = {
    "。": STOP_PAUSE_MS,
    ".": STOP_PAUSE_MS,
    "，": COMMA_PAUSE_MS,
    ",": COMMA_PAUSE_MS,
    "、": COMMA_PAUSE_MS,
}

ABBREVIATIONS = frozenset(
    (
        *(
            "mr",
            "mrs",
            "ms",
            "dr",
            "prof",
            "sr",
            "jr",
            "st",
            "mt",
            "gen",
            "col",
            "capt",
            "lt",
            "sgt",
        ),
        *("rev", "hon", "gov", "sen", "rep", "pres", "vs", "etc", "eg", "ie", "cf", "al", "approx"),
        *("inc", "ltd", "co", "corp", "dept", "univ", "fig", "vol", "pp", "ave", "blvd", "rd"),
        *("jan", "feb", "mar", "apr", "aug", "sep", "sept", "oct", "nov", "dec"),
    )
)

_SOUND_TAG = "|".join(map(re.escape, SOUND_TAGS))
_TAG = r"\[[a-z_0-9]+\]"
# What is never cut: a tag, a word with its apostrophes, any other single character.
_ATOM = re.compile(rf"{_TAG}|[A-Za-z0-9']+|.", re.DOTALL)
# A mark takes along the sounds that follow it; "." and "," end nothing within a word.
_STOP = re.compile(rf"(?:。|\.(?![A-Za-z0-9,]))(?:\s*(?:{_SOUND_TAG}))*\s*")
_COMMA = re.compile(rf"(?:[，、]|,(?![A-Za-z0-9]))(?:\s*(?:{_SOUND_TAG}))*\s*")
_LAST_WORD = re.compile(r"[A-Za-z0-9.']*\Z")


@dataclass(frozen=True)
class Segment:
    """A piece that is spoken in one go, and the silence between it and the next."""

    text: SpeakableText
    pause_ms: int


def split_segments(text: SpeakableText) -> tuple[Segment, ...]:
    """Cut a text into segments; put together again they are the text, but for the spaces at a cut.

    Every segment has something to speak. A text that is short enough is one segment, unchanged.
    """
    pieces = _join(_with_speech(_short_pieces(text)))
    return tuple(
        Segment(SpeakableText(piece.strip()), _pause_ms(piece) if index < len(pieces) - 1 else 0)
        for index, piece in enumerate(pieces)
    )


def spoken_length(text: str) -> int:
    """How long a text takes to speak, in Han characters; marks and tags count nothing."""
    return sum(map(_atom_length, _ATOM.findall(text)))


def dominant_language(text: str, asked: Language | None) -> Language:
    """The language that takes more time to speak; of a text without letters the one asked for."""
    plain = "".join(piece.text for piece in split_tags(text) if not piece.is_tag)
    han = sum(char.isalnum() and not char.isascii() for char in plain)
    if not any(map(str.isalpha, plain)):
        return asked or "zh"
    return "zh" if 2 * han >= spoken_length(plain) else "en"


def _atom_length(atom: str) -> int:
    if atom.startswith("["):
        return 0
    if atom[0].isascii():
        return -(-sum(map(str.isalnum, atom)) // LETTERS_PER_HAN)
    return int(atom.isalnum())


def _short_pieces(text: str) -> Iterable[str]:
    """Sentences; of a long one its clauses; of a long clause stretches of words."""
    for sentence in _cut_after(_STOP, text):
        if spoken_length(sentence) <= MAX_LENGTH:
            yield sentence
            continue
        for clause in _cut_after(_COMMA, sentence):
            if spoken_length(clause) <= MAX_LENGTH:
                yield clause
            else:
                yield from _cut_unmarked(clause)


def _cut_after(mark: re.Pattern[str], text: str) -> Iterable[str]:
    start = 0
    for match in mark.finditer(text):
        if match[0][0] == "." and _is_abbreviation(text, start, match.start()):
            continue
        yield text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def _is_abbreviation(text: str, start: int, stop: int) -> bool:
    """Whether the word before a "." is written with one: Dr, U.S, e.g, a single capital letter."""
    last = _LAST_WORD.search(text, max(start, stop - 20), stop)
    word = last[0] if last else ""
    if word in ("", "I"):
        return False
    letters = word.replace(".", "")
    is_dotted = "." in word and all(len(part) == 1 for part in word.split("."))
    return is_dotted or (len(word) == 1 and word.isupper()) or letters.lower() in ABBREVIATIONS


def _cut_unmarked(text: str) -> Iterable[str]:
    """Even stretches of a text that has no mark, cut at a space where one is near the end."""
    num_pieces = -(-spoken_length(text) // TARGET_LENGTH)
    wanted = -(-spoken_length(text) // num_pieces)
    atoms: list[str] = []
    length = 0
    for atom in _ATOM.findall(text):
        size = _atom_length(atom)
        if length and length + size > wanted:
            head = _up_to_last_space(atoms)
            yield "".join(atoms[:head])
            atoms = atoms[head:]
            length = sum(map(_atom_length, atoms))
        atoms.append(atom)
        length += size
    yield "".join(atoms)


def _up_to_last_space(atoms: list[str]) -> int:
    """How many atoms make up the stretch: to the last space in its second half, else all."""
    for index in range(len(atoms) - 1, len(atoms) // 2, -1):
        if atoms[index] == " ":
            return index + 1
    return len(atoms)


def _with_speech(pieces: Iterable[str]) -> list[str]:
    """Join a piece of nothing but tags and marks to the one before it, at the start to the next."""
    joined: list[str] = []
    for piece in pieces:
        if joined and not (_is_speech(piece) and _is_speech(joined[-1])):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _is_speech(text: str) -> bool:
    return any(not piece.is_tag and any(map(str.isalnum, piece.text)) for piece in split_tags(text))


def _join(pieces: list[str]) -> list[str]:
    """Put neighbours together up to TARGET_LENGTH, and very short ones also beyond it."""
    joined: list[str] = []
    lengths: list[int] = []
    for piece in pieces:
        length = spoken_length(piece)
        if joined and _belong_together(lengths[-1], length):
            joined[-1] += piece
            lengths[-1] += length
        else:
            joined.append(piece)
            lengths.append(length)
    return joined


def _belong_together(before: int, after: int) -> bool:
    limit = MAX_LENGTH if min(before, after) < MIN_LENGTH else TARGET_LENGTH
    return before + after <= limit


def _pause_ms(piece: str) -> int:
    """By the last mark of a piece, whatever tags stand behind it."""
    marks = "".join(part.text for part in split_tags(piece) if not part.is_tag).rstrip()
    return _PAUSES_MS.get(marks[-1:], NO_MARK_PAUSE_MS)
