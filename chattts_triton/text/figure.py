"""One figure of a text: what it is and what stands around it. Its reading is `figure_reader`'s."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chattts_triton.text.cleaner import Language
from chattts_triton.text.units import HAN_UNITS, LATIN_UNITS

NUM_COUNTED = 2  # Han characters behind a number that decide how it is counted
_NUM_BEHIND = 12  # longer than any unit in words

_HAN = re.compile("[\u4e00-\u9fff]*")
_HAN_UNIT = re.compile("|".join(sorted(HAN_UNITS, key=len, reverse=True)))
_LATIN_UNIT = re.compile(rf" (?:{'|'.join(LATIN_UNITS)})(?![A-Za-z])")
_CODE = re.compile(
    r"(?:[码号]|密钥|(?<![a-z])(?:code|pin|password|id|serial number))"
    r"(?: ?(?:[是为:：]| is )){0,2} ?\Z",
    re.IGNORECASE,
)
_GLUE = re.compile(r".?[A-Za-z]|[A-Za-z]-", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """One figure of a text, before it is read.

    Attributes:
        kind: A key of `KINDS`.
        start: Where it begins in the text.
        end: Where it ends.
        text: The figure itself.
        parts: The named parts of its pattern.
        number: Of a quantity: digits and at most one ".".
        unit: Of a quantity: a key of UNITS, or "".
        following: The Han characters right behind it, as many as matter.
        behind: A stretch of the text behind it.
        is_called_code: A word such as 验证码 or PIN stands before it.
        is_glued: It stands right behind a Latin letter, or behind one and a hyphen: MP3, F-16.
        is_part_of_range: The other half stands next to it.
        language: Set once the letters around it are known.
    """

    kind: str
    start: int
    end: int
    text: str
    parts: dict[str, str]
    number: str
    unit: str
    following: str
    behind: str
    is_called_code: bool
    is_glued: bool
    is_part_of_range: bool = False
    language: Language = "zh"

    @classmethod
    def of(cls, match: re.Match[str]) -> Figure:
        """What a match of `FIGURE` found."""
        kind = match.lastgroup or ""
        start, end = match.span()
        behind = match.string[end : end + _NUM_BEHIND]
        before = match.string[max(start - 2, 0) : start]
        parts = {name: part for name, part in match.groupdict().items() if part is not None}
        han = _HAN.match(behind)
        return cls(
            kind=kind,
            start=start,
            end=end,
            text=match[0],
            parts=parts,
            number=parts.get("number", "").replace(",", ""),
            unit=parts.get("unit") or parts.get("spaced_unit") or "",
            following=han[0][:NUM_COUNTED] if han else "",
            behind=behind,
            is_called_code=_CODE.search(match.string, max(start - 20, 0), start) is not None,
            is_glued=_GLUE.fullmatch(before) is not None,
        )

    @property
    def is_counted(self) -> bool:
        """Whether a unit in words stands behind the figure."""
        unit = _HAN_UNIT if self.language == "zh" else _LATIN_UNIT
        return unit.match(self.behind) is not None
