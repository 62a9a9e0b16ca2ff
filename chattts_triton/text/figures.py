"""Finds what is written in figures, decides its language, and puts the spoken form in its place.

Letters and marks outside the figures are not touched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from chattts_triton.text.characters import TABLE, Kind
from chattts_triton.text.cleaner import Language
from chattts_triton.text.figure import Figure
from chattts_triton.text.figure_patterns import FIGURE
from chattts_triton.text.figure_reader import FigureReader
from chattts_triton.text.tags import split_tags
from chattts_triton.text.units import OPERATORS

_CLAUSE_ENDS = (Kind.STOP, Kind.COMMA, Kind.PAUSE, Kind.LINE_BREAK)
_MARKS = frozenset("".join(chars for kind, _, chars in TABLE if kind in _CLAUSE_ENDS))
_WORD_OR_MARK = re.compile(
    rf"[\u4e00-\u9fff]|[A-Za-z]+(?:['’][A-Za-z]+)*|[{re.escape(''.join(sorted(_MARKS)))}]"
)
_HALF_WIDTH = {ord(char) + 0xFEE0: char for char in "#$%&()*+-./:<=>@_~"} | {0xB5: "μ"}
_HAN = re.compile("[\u4e00-\u9fff]")
_LATIN = re.compile("[A-Za-z]")
_NAME = re.compile("[A-Z]{1,5}|[a-z]")  # AI, x
_NAME_BEHIND = re.compile("[A-Za-z]+")
_NAME_BEFORE = re.compile(r"(?<![A-Za-z])[A-Za-z]+-?\Z")
_RANGE_SIGN = r"[-‐‑−－–—~～〜]"
# 5元-10元, 3日－5日: a measure word may stand between the figure and the sign.
_RANGE = re.compile(rf"(?P<measure>[\u4e00-\u9fff]{{0,2}}) ?{_RANGE_SIGN}{{1,2}} ?")
_MINUS = re.compile(r"(?:^|(?<=[^A-Za-z0-9\-−－]))[-−－]$")
_BETWEEN = re.compile(rf" ?([{re.escape(''.join(OPERATORS))}\-−－]) ?")
_BEFORE = re.compile(r"(?<![+=])([=≈≠≤≥±+×÷]) ?$")
_AFTER = re.compile(r"^ ?([=≈≠≤≥+×÷])")
_BEFORE_NAME = re.compile("[\u4e00-\u9fff](?<![为是达至到降约温于])$")
_NO_RANGE = ("address", "phone", "dotted")


@dataclass(frozen=True)
class _Gap:
    """The text between two figures, as it was sent and with its tags blanked out."""

    text: str
    masked: str


def read_figures(text: str, asked: Language | None, reader: FigureReader) -> str:
    """Replace every figure of a folded text by its spoken form.

    Args:
        text: Went through `characters.fold`; control tags are left as they are.
        asked: The language of a text that has neither Han nor Latin letters.
        reader: Speaks one figure.
    """
    masked = "".join(
        "\0" * len(piece.text) if piece.is_tag else piece.text for piece in split_tags(text)
    )
    masked = masked.translate(_HALF_WIDTH)
    figures = [Figure.of(match) for match in FIGURE.finditer(masked)]
    if not figures:
        return text
    ends = [0, *(figure.end for figure in figures)]
    starts = [*(figure.start for figure in figures), len(text)]
    gaps = [
        _Gap(text[end:start], masked[end:start]) for end, start in zip(ends, starts, strict=True)
    ]
    figures = _with_languages(figures, gaps, asked)
    return _write(figures, gaps, reader)


def _with_languages(
    figures: list[Figure], gaps: list[_Gap], asked: Language | None
) -> list[Figure]:
    """Give each figure the language of the words next to it.

    Within its clause: Chinese where Han stands on either side, English where only Latin words do.
    Else as the nearest word before it, the first of the text, `asked`, Chinese. Letters that adjoin
    a figure are part of its name, and single letters and abbreviations in capitals are names as
    well: they tell no language.
    """
    words = [_words_of(gap, index, len(gaps)) for index, gap in enumerate(gaps)]
    rights = _sweep(words[:0:-1])[::-1]
    lefts = _sweep([words_before[::-1] for words_before in words[:-1]])
    first = next((word for each in words for word in each if word), asked)
    first = first or _language_of_names(figures, gaps)
    nearest: Language | None = None
    chosen = []
    for figure, left, right, before in zip(figures, lefts, rights, words, strict=False):
        nearest = next((word for word in reversed(before) if word), nearest)
        is_chinese = "zh" in (left, right) or _HAN.search(figure.text) is not None
        language = "zh" if is_chinese else left or right
        chosen.append(replace(figure, language=language or nearest or first))
    return chosen


def _sweep(words: list[list[Language | None]]) -> list[Language | None]:
    """The word that is nearest after each gap has gone by, none if a mark came after it."""
    nearest: Language | None = None
    found = []
    for each in words:
        if each:
            nearest = each[0]
        found.append(nearest)
    return found


def _words_of(gap: _Gap, index: int, num_gaps: int) -> list[Language | None]:
    """The language of each word of a gap, None for a mark that ends a clause."""
    masked = gap.masked
    begin = 0
    end = len(masked)
    if index > 0 and (match := _NAME_BEHIND.match(masked)):
        begin = match.end()
    if index < num_gaps - 1 and (match := _NAME_BEFORE.search(masked, begin)):
        end = match.start()
    found: list[Language | None] = []
    for word in _WORD_OR_MARK.findall(masked, begin, end):
        if "\u4e00" <= word <= "\u9fff":
            found.append("zh")
        elif word[0] in _MARKS:
            found.append(None)
        elif not _NAME.fullmatch(word):
            found.append("en")
    return found


def _language_of_names(figures: list[Figure], gaps: list[_Gap]) -> Language:
    """Of a text that has no word: English if there are letters at all, as in 5 kg or A4."""
    names = [gap.masked for gap in gaps if not _BETWEEN.fullmatch(gap.masked)]
    names += [figure.text for figure in figures]
    return "en" if any(_LATIN.search(name) for name in names) else "zh"


def _write(figures: list[Figure], gaps: list[_Gap], reader: FigureReader) -> str:
    joints = _connect(figures, gaps)
    written = [joints[0]]
    for figure, joint in zip(figures, joints[1:], strict=True):
        spoken = reader.read(figure)
        if figure.language == "en" or spoken[:1].isascii():
            spoken = _spaced(spoken, written[-1][-1:], joint[:1])
        written += [spoken, joint]
    return "".join(written)


def _spaced(spoken: str, before: str, after: str) -> str:
    """English words stand apart from the letters around them."""
    head = " " if before.isascii() and before.isalnum() else ""
    tail = " " if after.isascii() and after.isalnum() else ""
    return f"{head}{spoken}{tail}"


def _connect(figures: list[Figure], gaps: list[_Gap]) -> list[str]:
    """The texts between the figures, with the signs that belong to figures in words.

    Changes `figures` in place, where one side of a range takes its unit from the other.
    """
    is_range = [False] * len(gaps)
    for index in range(1, len(gaps) - 1):
        is_range[index] = _is_range(figures[index - 1], figures[index], gaps[index])
    joints = []
    for index, gap in enumerate(gaps):
        before = figures[index - 1] if index else None
        after = figures[index] if index < len(figures) else None
        is_chain = is_range[index] and (is_range[index - 1] or is_range[index + 1])
        if before and after and is_range[index] and not is_chain:
            if _BETWEEN.fullmatch(gap.masked) and gaps[index + 1].masked.lstrip()[:1] == "=":
                joints.append(_word(after, "−"))
                continue
            figures[index - 1], figures[index] = _as_range(before, after)
            measure = _RANGE.fullmatch(gap.masked)
            words = ("到", " to ")[after.language == "en"]
            joints.append(f"{measure['measure'] if measure else ''}{words}")
        else:
            joints.append(_with_operators(gap, before, after, is_chain=is_chain))
    return joints


def _is_range(before: Figure, after: Figure, gap: _Gap) -> bool:
    return (
        before.kind not in _NO_RANGE
        and after.kind not in _NO_RANGE
        and not before.is_glued
        and _RANGE.fullmatch(gap.masked) is not None
    )


def _as_range(before: Figure, after: Figure) -> tuple[Figure, Figure]:
    """10-20%: both are percentages; 2-3个: both are counted; 2023-2024年: both are years."""
    if before.kind == "quantity" and not before.unit and not before.following:
        is_year = after.kind == "year" and len(before.number) == 4
        before = replace(
            before,
            kind="year" if is_year else before.kind,
            unit=after.unit if after.unit in ("%", "‰") and after.language == "zh" else "",
            following=after.following,
            is_part_of_range=True,
        )
    return before, replace(after, is_part_of_range=True)


def _with_operators(
    gap: _Gap, before: Figure | None, after: Figure | None, *, is_chain: bool
) -> str:
    text, masked = gap.text, gap.masked
    match = _BETWEEN.fullmatch(masked)
    if before and after and match and match[1] in OPERATORS:
        return _word(after, match[1])
    if after and after.is_glued and masked.endswith("-"):
        return text[:-1] + " " * (after.language == "en")
    if after and not is_chain:
        sign = _MINUS.search(masked)
        if sign and before and sign.start() == 0:
            sign = None  # i7-12700: between two figures it is a hyphen
        if sign and not _is_negative(after, masked[: sign.start()]):
            text, masked = text[: sign.start()], masked[: sign.start()]  # 歼-20
        elif sign:
            minus = ("负", " minus ")[after.language == "en"]
            text, masked = text[: sign.start()] + minus, masked[: sign.start()]
        elif match := _BEFORE.search(masked):
            text, masked = text[: match.start()] + _word(after, match[1]), masked[: match.start()]
    if before and (match := _AFTER.match(masked)):
        text = _word(before, match[1]) + text[match.end() :]
    return text


def _is_negative(figure: Figure, before: str) -> bool:
    """Whether a minus before a figure is one, and not the hyphen of a name."""
    has_unit = bool(figure.unit or figure.is_counted or "currency" in figure.parts)
    return has_unit or "." in figure.number or _BEFORE_NAME.search(before) is None


def _word(figure: Figure, sign: str) -> str:
    zh, en = OPERATORS[sign]
    return f" {en} " if figure.language == "en" else zh
