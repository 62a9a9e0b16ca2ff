"""Whether a refined text may be spoken in place of the one that was sent."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from chattts_triton.text.tags import TAGS

SMALLEST_SHARE_KEPT = 0.8  # of the user's words, in their order
LARGEST_GROWTH = 1.5  # refinement adds fillers and pauses, but tells no story of its own
SPARE_WORDS = 4

_WORD = re.compile(r"[\u3400-\u9fff]|[A-Za-z0-9']+")
_TAG = re.compile(r"\[\w+\]")


def is_faithful(text: str, refined: str) -> bool:
    """Whether `refined` keeps to the words of `text`, Han characters counting as words.

    It does if at least 80 % of the words are there in their order, if there are at most 1.5 times
    as many and 4 more, and if every bracket in it belongs to a tag that a user may write.
    """
    brackets = [tag for tag in _TAG.findall(refined) if tag not in TAGS]
    wanted, got = _words(text), _words(refined)
    if brackets or not got or len(got) > LARGEST_GROWTH * len(wanted) + SPARE_WORDS:
        return False
    blocks = SequenceMatcher(None, wanted, got, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) >= SMALLEST_SHARE_KEPT * len(wanted)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_TAG.sub(" ", text))]
