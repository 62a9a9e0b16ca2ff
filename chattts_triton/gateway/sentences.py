"""Text that arrives piece by piece, given out a sentence at a time."""

from __future__ import annotations

import re

MAX_LENGTH = 200  # a longer sentence is given out in parts
# A full stop may be that of a figure, until it is known what follows.
_END = re.compile(r"(?:[。！？!?；;\n]|\.(?=\s))+[”’\"')\]】」』]*")
_BREAK = re.compile(r"[，、,：:\s]")


class SentenceBuffer:
    """Holds back what is no whole sentence yet.

    Joined, the sentences are the text, but for spaces around them and what nothing can be said of.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, piece: str) -> list[str]:
        """The sentences that a piece completes."""
        self._rest += piece
        sentences = []
        while end := self._find_end():
            sentences.append(self._rest[:end].strip())
            self._rest = self._rest[end:]
        return sentences

    def finish(self) -> list[str]:
        """What is left, the text being over."""
        sentences = [self._rest.strip()] if _has_words(self._rest) else []
        self._rest = ""
        return sentences

    def _find_end(self) -> int:
        """Where the first sentence ends, or 0; one without words is left to the next."""
        for match in _END.finditer(self._rest, 0, MAX_LENGTH):
            if _has_words(self._rest[: match.end()]):
                return match.end()
        if len(self._rest) < MAX_LENGTH:
            return 0
        breaks = [match.end() for match in _BREAK.finditer(self._rest, 0, MAX_LENGTH)]
        return breaks[-1] if breaks and _has_words(self._rest[: breaks[-1]]) else MAX_LENGTH


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))
