"""What may be spoken: words and patterns of a file, found however they are spelled.

No text and no part of one is ever logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ahocorasick_rs
import re2

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.filter_file import FilterList, FilterRules, read_rules
from chattts_triton.gateway.protection.folding import FoldedText, fold_characters, fold_letters
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.watched import Watched

LOGGER = logging.getLogger(__name__)

_FIRST_UNSPACED = "\u0530"  # before it: Latin, Greek, Cyrillic and digits

Span = tuple[int, int]


class ContentFilter(Protocol):
    """Decides on a text; called in the event loop."""

    async def apply(self, text: str) -> str:
        """What may be spoken of it: the text itself, or with parts replaced.

        Raises:
            ApiError: Nothing of it may be spoken.
        """
        ...


@dataclass(frozen=True)
class Finding:
    """The places in a text that one list names."""

    list: FilterList
    spans: tuple[Span, ...]


class FileFilter:
    """The filter of a file, read anew when it changes.

    Args:
        path: Of the file.
        metrics: Of the protection.
        now: A clock, in seconds.

    Raises:
        InvalidRequestError: The file cannot be read; the message names the list and its field.
    """

    def __init__(
        self, path: Path, metrics: ProtectionMetrics, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        failures = metrics.reload_failures.labels("content_filter")
        self._matcher = Watched(lambda: _read(path), [path], failures.inc, now)

    async def apply(self, text: str) -> str:
        """As `ContentFilter`."""
        matcher = await self._matcher.current()
        findings = matcher.find(text)
        for finding in findings:
            name, action = finding.list.name, finding.list.action
            self._metrics.filter_matches.labels(name, action).inc(len(finding.spans))
            LOGGER.info("content filter: list %s, %s: %d places", name, action, len(finding.spans))
        if any(finding.list.action == "block" for finding in findings):
            raise ApiError(
                400, "content_blocked", "input: the content filter refuses this text", param="input"
            )
        masked = [finding.spans for finding in findings if finding.list.action == "mask"]
        return _replaced(text, _united(span for spans in masked for span in spans), matcher.mask)


class Matcher:
    """Finds what rules name.

    Raises:
        InvalidRequestError: A word has no letters, or a pattern cannot be used; the message names
            the list.
    """

    def __init__(self, rules: FilterRules) -> None:
        self.mask = rules.mask
        self._lists = rules.lists
        self._words, self._owners = _words_of(rules.lists)
        self._automaton = ahocorasick_rs.AhoCorasick(self._words)
        self._patterns = [
            (owner, _compiled(one, pattern))
            for owner, one in enumerate(rules.lists)
            for pattern in one.patterns
        ]

    def find(self, text: str) -> list[Finding]:
        """Every list that names something in a text, with the places."""
        spans: dict[int, set[Span]] = {}
        for owner, span in (*self._find_words(text), *self._find_patterns(text)):
            spans.setdefault(owner, set()).add(span)
        return [
            Finding(self._lists[owner], tuple(sorted(found)))
            for owner, found in sorted(spans.items())
        ]

    def _find_words(self, text: str) -> Iterator[tuple[int, Span]]:
        if not self._words:
            return
        folded = fold_letters(text)
        for word, start, end in self._automaton.find_matches_as_indexes(
            folded.text, overlapping=True
        ):
            is_whole = _is_whole_word(folded, start, end)
            for owner in self._owners[word]:
                if is_whole or not self._lists[owner].whole_words:
                    yield owner, folded.span(start, end)

    def _find_patterns(self, text: str) -> Iterator[tuple[int, Span]]:
        if not self._patterns:
            return
        folded = fold_characters(text)
        for owner, pattern in self._patterns:
            for match in pattern.finditer(folded.text):
                if match.end() > match.start():
                    yield owner, folded.span(match.start(), match.end())


def _read(path: Path) -> tuple[Matcher, Iterable[Path]]:
    rules = read_rules(path)
    try:
        return Matcher(rules), rules.word_files
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error}") from None


def _words_of(lists: Iterable[FilterList]) -> tuple[list[str], list[set[int]]]:
    """Folded words, each once, and for each the lists that have it."""
    owners: dict[str, set[int]] = {}
    for index, one in enumerate(lists):
        for number, word in enumerate(one.words, start=1):
            folded = fold_letters(word).text
            if not folded:
                raise InvalidRequestError(f"list {one.name}: word {number} has no letter or digit")
            owners.setdefault(folded, set()).add(index)
    return list(owners), list(owners.values())


def _compiled(one: FilterList, pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False  # it would write to standard error
    options.case_sensitive = False
    options.never_capture = True
    number = one.patterns.index(pattern) + 1
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidRequestError(
            f"list {one.name}: pattern {number} is none of RE2: {_message(error)}"
        ) from None
    if compiled.search("") is not None:
        raise InvalidRequestError(f"list {one.name}: pattern {number} matches where nothing is")
    return compiled


def _message(error: Exception) -> str:
    (message,) = error.args
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def _is_whole_word(folded: FoldedText, start: int, end: int) -> bool:
    """Whether a match is no part of a longer word, where words have spaces between them."""
    is_whole_before = folded.is_start[start] or not _is_one_word(folded.text[start - 1 : start + 1])
    is_whole_behind = folded.is_end(end - 1) or not _is_one_word(folded.text[end - 1 : end + 1])
    return is_whole_before and is_whole_behind


def _is_one_word(pair: str) -> bool:
    return max(pair) < _FIRST_UNSPACED


def _united(spans: Iterable[Span]) -> list[Span]:
    """Spans without those that overlap or touch."""
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def _replaced(text: str, spans: Iterable[Span], mask: str) -> str:
    parts = []
    position = 0
    for start, end in spans:
        parts += [text[position:start], mask]
        position = end
    return "".join((*parts, text[position:]))
