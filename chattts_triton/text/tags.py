"""The control tags a caller may write in a text; nothing else in brackets is one."""

from __future__ import annotations

import re
from typing import NamedTuple

SOUND_TAGS = ("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[laugh]")
SPEED_TAGS = tuple(f"[speed_{level}]" for level in range(10))
STYLE_TAGS = (
    *(f"[oral_{level}]" for level in range(10)),
    *(f"[laugh_{level}]" for level in range(3)),
    *(f"[break_{level}]" for level in range(8)),
)
TAGS = (*SOUND_TAGS, *STYLE_TAGS, *SPEED_TAGS)

# ASCII, or the case folding would take "[\u017fpeed_5]" (long s) for a tag.
_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")", re.IGNORECASE | re.ASCII)


class Piece(NamedTuple):
    """A stretch of plain text, or one tag in its canonical spelling."""

    text: str
    is_tag: bool


def split_tags(text: str) -> list[Piece]:
    """Take the control tags out of a text; letter case does not matter, empty pieces are left out.

    Brackets around anything else stay in the plain text, where they are marks like others.
    """
    parts = _TAG.split(text)
    return [
        Piece(part.lower() if index % 2 else part, is_tag=bool(index % 2))
        for index, part in enumerate(parts)
        if part
    ]
