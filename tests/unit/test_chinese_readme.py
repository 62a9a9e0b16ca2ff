"""README.zh-CN.md says what README.md says: the same commands, places, names and links."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    return _BLOCK.findall(text)


def levels(text: str) -> list[int]:
    return [len(mark) for mark in re.findall(r"^(#+) ", _BLOCK.sub("", text), re.MULTILINE)]


def table_rows(text: str) -> list[int]:
    """Cells of each row of each table."""
    rows = re.findall(r"^\|.*\|$", _BLOCK.sub("", text), re.MULTILINE)
    return [row.count("|") for row in rows]


def list_items(text: str) -> list[str]:
    return re.findall(r"^(-|\d\.) ", text, re.MULTILINE)


def code_spans(text: str) -> list[str]:
    return sorted(re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text)))


def links(text: str) -> list[str]:
    """Where they lead, but for those within the page and to the other language."""
    found = re.findall(r"\]\(([^)]+)\)", _BLOCK.sub("", text))
    return sorted(link for link in found if not link.startswith(("#", "README.")))


@pytest.mark.parametrize("part", [blocks, levels, table_rows, list_items, code_spans, links])
def test_both_languages_have_the_same(part: Callable[[str], list[object]]):
    assert part(CHINESE) == part(ENGLISH)


def test_each_language_leads_to_the_other():
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE
