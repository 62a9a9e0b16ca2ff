"""The user's own pronunciations: a file of `word<TAB>replacement` lines, watched while in use."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chattts_triton.errors import ModelLoadError, shorten
from chattts_triton.text.characters import fold

LOGGER = logging.getLogger(__name__)

LEXICON_FILE = "lexicon.tsv"  # beside config.pbtxt of `preprocess`, where one is wanted
CHECK_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Entries:
    """The words of one reading of the file."""

    replacements: Mapping[str, str]  # words as `_lower` has them
    lengths: Mapping[str, list[int]]  # of the words that begin with a character, longest first

    def apply(self, text: str) -> str:
        """Replace the words of the file, from left to right, the longest first.

        Letter case does not matter, and a word that begins or ends with a letter or digit matches
        only where no other one adjoins. What was put in is not looked at again.
        """
        if not self.replacements:
            return text
        lowered = _lower(text)
        written: list[str] = []
        position = 0
        while position < len(text):
            end = self._match(lowered, position)
            if end is None:
                written.append(text[position])
                position += 1
            else:
                written.append(self.replacements[lowered[position:end]])
                position = end
        return "".join(written)

    def _match(self, lowered: str, start: int) -> int | None:
        """Where the longest word that begins at `start` ends."""
        if _is_within_word(lowered, start):
            return None
        for length in self.lengths.get(lowered[start], ()):
            end = start + length
            if lowered[start:end] in self.replacements and not _is_within_word(lowered, end):
                return end
        return None


class Lexicon:
    """The file as it is now; any thread may call it.

    Size and time of the file are looked at once a second at most. A file that has become
    unreadable or wrong leaves the former words in force, and is logged once. One that does not
    exist yet has no words.

    Args:
        path: UTF-8; empty lines and lines that begin with # are left out.
        clock: Seconds that only grow.

    Raises:
        ModelLoadError: The file is there and cannot be read, or a line is wrong: the message has
            its number.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._checked_at_s = clock()
        self._signature = _signature(path)
        self._entries = read_entries(path) if self._signature else Entries({}, {})

    def entries(self) -> Entries:
        """The words in force."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._checked_at_s >= CHECK_INTERVAL_S:
                self._checked_at_s = now_s
                self._reload_if_changed()
            return self._entries

    def _reload_if_changed(self) -> None:
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._entries = read_entries(self._path)
        except ModelLoadError as error:
            LOGGER.error("lexicon not reloaded, the former words stay: %s", error)
        else:
            LOGGER.info("%s: lexicon reloaded", self._path)


def read_entries(path: Path) -> Entries:
    """Read the file once.

    Raises:
        ModelLoadError: The file cannot be read, or a line is wrong: the message has its number.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    words: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip() and not line.startswith("#"):
            word, replacement = _read_line(path, number, line)
            if word in words:
                raise ModelLoadError(f"{path}: line {number}: {shorten(word)} is there already")
            words[word] = replacement
    lengths: dict[str, set[int]] = {}
    for word in words:
        lengths.setdefault(word[0], set()).add(len(word))
    return Entries(words, {first: sorted(each, reverse=True) for first, each in lengths.items()})


def _read_line(path: Path, number: int, line: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split("\t")]
    word = _lower(fold(cells[0]))
    if len(cells) != 2 or not word or not cells[1]:
        raise ModelLoadError(
            f"{path}: line {number}: got {shorten(line)}, wanted a word, a tab and a replacement"
        )
    return word, cells[1]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _lower(text: str) -> str:
    """Lower case, character by character, so that positions stay those of the text."""
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def _is_within_word(text: str, position: int) -> bool:
    """Whether a letter or digit stands on both sides of a position."""
    return 0 < position < len(text) and _is_word(text[position - 1]) and _is_word(text[position])


def _is_word(char: str) -> bool:
    return char.isascii() and char.isalnum()
