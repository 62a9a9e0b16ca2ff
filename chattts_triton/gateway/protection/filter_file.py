"""The file of a content filter: what it names, and what happens then."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from chattts_triton.errors import InvalidRequestError

Action = Literal["block", "mask", "log"]

ACTIONS = ("block", "mask", "log")
DEFAULT_MASK = " "
_FILE_FIELDS = {"mask": str, "list": list}
_LIST_FIELDS = {
    "name": str,
    "action": str,
    "words": list,
    "words_file": str,
    "patterns": list,
    "whole_words": bool,
}
_KINDS = {str: "a string", list: "a list", bool: "true or false"}


@dataclass(frozen=True)
class FilterList:
    """Words and patterns that have one action.

    Attributes:
        name: For metrics and the log.
        action: `block` refuses the text, `mask` replaces the place, `log` only counts.
        words: As they were written.
        patterns: Regular expressions of RE2.
        whole_words: Words in letters that are written with spaces between words, such as Latin,
            are found only where they are not a part of a longer word.
    """

    name: str
    action: Action
    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    whole_words: bool = True


@dataclass(frozen=True)
class FilterRules:
    """What one file says, and the files of words that it names.

    Attributes:
        lists: In the order of the file.
        mask: Stands in place of what is masked.
        word_files: Are read with it.
    """

    lists: tuple[FilterList, ...]
    mask: str = DEFAULT_MASK
    word_files: tuple[Path, ...] = ()


def read_rules(path: Path) -> FilterRules:
    """The rules of a TOML file.

    Raises:
        InvalidRequestError: A file cannot be read or says something unknown; the message names the
            list and its field.
    """
    try:
        content = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error}") from None
    _check_fields(str(path), content, _FILE_FIELDS)
    lists: list[FilterList] = []
    word_files: list[Path] = []
    for number, entry in enumerate(content.get("list", []), start=1):
        source = f"{path}: list {number}"
        if not isinstance(entry, dict):
            raise InvalidRequestError.of(source, entry, "a table")
        _check_fields(source, entry, _LIST_FIELDS)
        if "words_file" in entry:
            word_files.append(path.parent / entry["words_file"])
        lists.append(_list(source, entry, word_files[-1] if "words_file" in entry else None))
    names = [one.name for one in lists]
    if not lists or len(set(names)) < len(names):
        raise InvalidRequestError(f"{path}: wanted at least one [[list]], each with its own name")
    return FilterRules(tuple(lists), content.get("mask", DEFAULT_MASK), tuple(word_files))


def _list(source: str, entry: Mapping[str, Any], word_file: Path | None) -> FilterList:
    action = entry.get("action")
    if action not in ACTIONS:
        raise InvalidRequestError.of(f"{source}: action", action, f"one of: {', '.join(ACTIONS)}")
    if not entry.get("name"):
        raise InvalidRequestError(f"{source}: name: missing")
    words = [*entry.get("words", ())]
    if word_file is not None:
        lines = (line.strip() for line in _text(word_file).splitlines())
        words += [line for line in lines if line and not line.startswith("#")]
    patterns = entry.get("patterns", [])
    if not all(isinstance(text, str) for text in (*words, *patterns)):
        raise InvalidRequestError(f"{source}: words and patterns: wanted strings")
    return FilterList(
        name=entry["name"],
        action=cast(Action, action),
        words=tuple(words),
        patterns=tuple(patterns),
        whole_words=entry.get("whole_words", True),
    )


def _check_fields(source: str, content: Mapping[str, Any], known: Mapping[str, type]) -> None:
    for name, value in content.items():
        if name not in known:
            raise InvalidRequestError.of(f"{source}: field", name, f"one of: {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise InvalidRequestError(f"{source}: {name}: wanted {_KINDS[known[name]]}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error}") from None
