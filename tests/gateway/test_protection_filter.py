"""The content filter: what it finds, what it does then, and files that change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from protection_harness import Clock, value_of

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.content_filter import FileFilter, Matcher
from chattts_triton.gateway.protection.filter_file import FilterList, FilterRules
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.watched import Watched

BLOCK = '[[list]]\nname = "insults"\naction = "block"\nwords = ["bad", "坏人"]\n'
MASK = 'mask = "#"\n' + BLOCK.replace("block", "mask")


def filter_of(directory: Path, content: str) -> tuple[FileFilter, CollectorRegistry]:
    path = directory / "filter.toml"
    path.write_text(content, encoding="utf-8")
    registry = CollectorRegistry()
    return FileFilter(path, ProtectionMetrics(registry)), registry


def applied(content_filter: FileFilter, text: str) -> str:
    return asyncio.run(content_filter.apply(text))


@pytest.mark.parametrize(
    "text",
    [
        "bad",
        "That is BAD.",
        "that is ｂａｄ",
        "that is b a d!",
        "b[uv_break]ad",
        "b\u200bad",
        "你是坏人",
        "你是坏　人吗",
        "他说bad话",
    ],
)
def test_a_listed_word_is_refused_however_it_is_spelled(text: str, tmp_path: Path):
    content_filter, registry = filter_of(tmp_path, BLOCK)

    with pytest.raises(ApiError) as refusal:
        applied(content_filter, text)

    assert (refusal.value.status, refusal.value.code) == (400, "content_blocked")
    assert refusal.value.param == "input"
    assert value_of(registry, "filter_matches_total", list="insults", action="block") == 1


@pytest.mark.parametrize("text", ["badge", "rob adam", "a badminton", "bad1", "", "好人", "坏的人"])
def test_a_part_of_another_word_is_let_through(text: str, tmp_path: Path):
    content_filter, _ = filter_of(tmp_path, BLOCK)

    assert applied(content_filter, text) == text


def test_parts_of_words_are_found_where_a_list_says_so(tmp_path: Path):
    content_filter, _ = filter_of(tmp_path, MASK + "whole_words = false\n")

    assert applied(content_filter, "a badge") == "a #ge"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("bad", "#"),
        ("so bad, so Ｂ　Ａ　Ｄ!", "so #, so #!"),
        ("你是坏 人吗", "你是#吗"),
        ("b[laugh]ad bad[laugh]", "# #[laugh]"),
        ("good", "good"),
    ],
)
def test_only_what_is_listed_is_masked(text: str, masked: str, tmp_path: Path):
    content_filter, _ = filter_of(tmp_path, MASK)

    assert applied(content_filter, text) == masked


def test_places_that_overlap_are_masked_once(tmp_path: Path):
    content_filter, registry = filter_of(tmp_path, MASK.replace('"坏人"', '"坏人", "人们", "坏"'))

    assert applied(content_filter, "坏人们好") == "#好"
    assert value_of(registry, "filter_matches_total", list="insults", action="mask") == 3


def test_what_is_only_counted_is_let_through(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    content_filter, registry = filter_of(tmp_path, BLOCK.replace("block", "log"))

    with caplog.at_level(logging.DEBUG):
        assert applied(content_filter, "so bad, bad") == "so bad, bad"

    assert value_of(registry, "filter_matches_total", list="insults", action="log") == 2
    assert "list insults, log: 2 places" in caplog.text
    assert "bad" not in caplog.text


def test_a_pattern_sees_plain_forms_and_masks_the_original(tmp_path: Path):
    content_filter, _ = filter_of(
        tmp_path,
        'mask = "#"\n[[list]]\nname = "phones"\naction = "mask"\npatterns = [\'\\b1\\d{10}\\b\']\n',
    )

    assert applied(content_filter, "打１３８０００００００１吧 ") == "打#吧 "
    assert applied(content_filter, "call 13800000001.") == "call #."
    assert applied(content_filter, "call 1380000000") == "call 1380000000"


def test_a_pattern_that_others_would_try_for_ever_takes_no_time(tmp_path: Path):
    content_filter, _ = filter_of(
        tmp_path, '[[list]]\nname = "slow"\naction = "block"\npatterns = [\'(a+)+$\']\n'
    )
    started_s = time.process_time()

    assert applied(content_filter, "a" * 5000 + "b") == "a" * 5000 + "b"
    assert time.process_time() - started_s < 5.0


def test_words_come_from_a_file_too(tmp_path: Path):
    (tmp_path / "words.txt").write_text("\ufeff# names\n\nworse\n 更坏 \n", encoding="utf-8")
    content_filter, _ = filter_of(tmp_path, MASK + 'words_file = "words.txt"\n')

    assert applied(content_filter, "bad, worse, 更坏, names") == "#, #, #, names"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("[[", "cannot be read"),
        ("", "wanted at least one [[list]]"),
        (BLOCK + BLOCK, "wanted at least one [[list]], each with its own name"),
        ("colour = 1\n" + BLOCK, "field: got 'colour', wanted one of: mask, list"),
        ("mask = 1\n" + BLOCK, "mask: wanted a string"),
        ("list = [1]\n", "list 1: got 1, wanted a table"),
        (BLOCK + "word = []\n", "list 1: field: got 'word', wanted one of"),
        (BLOCK.replace('"block"', '"stop"'), "list 1: action: got 'stop', wanted one of: block"),
        (BLOCK.replace('"insults"', '""'), "list 1: name: missing"),
        (BLOCK.replace('["bad", "坏人"]', '"bad"'), "list 1: words: wanted a list"),
        (BLOCK.replace('"坏人"', "1"), "list 1: words and patterns: wanted strings"),
        (BLOCK.replace('"坏人"', '"?!"'), "list insults: word 2 has no letter or digit"),
        (BLOCK + "patterns = ['ok', '(?=a)']\n", "list insults: pattern 2 is none of RE2"),
        (BLOCK + "patterns = ['a*']\n", "list insults: pattern 1 matches where nothing is"),
        (BLOCK + "whole_words = 1\n", "list 1: whole_words: wanted true or false"),
        (BLOCK + 'words_file = "none.txt"\n', "none.txt: cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_the_list_and_its_field(
    content: str, wanted: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(InvalidRequestError) as error:
        filter_of(tmp_path, content)

    assert wanted in str(error.value)
    assert "filter.toml" in str(error.value) or "none.txt" in str(error.value)
    assert capfd.readouterr().err == ""


WORDS = st.lists(st.text("ab坏人", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@given(WORDS, st.text("ab坏人 ,", max_size=30))
def test_words_are_found_as_one_by_one_search_finds_them(words: list[str], text: str):
    rules = FilterRules((FilterList("all", "mask", tuple(words), whole_words=False),))
    places = [place for place, char in enumerate(text) if char.isalnum()]
    letters = "".join(text[place] for place in places)

    findings = Matcher(rules).find(text)

    assert {span for finding in findings for span in finding.spans} == {
        (places[start], places[start + len(word) - 1] + 1)
        for word in words
        for start in range(len(letters))
        if letters.startswith(word, start)
    }


class Files:
    """A file of one word that is watched, and what became of it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "word.txt"
        self.other = directory / "other.txt"
        self.num_reads = 0
        self.num_failures = 0
        self.clock = Clock()

    def read(self) -> tuple[str, list[Path]]:
        self.num_reads += 1
        word = self.path.read_text()
        if word == "broken":
            raise InvalidRequestError("word: got 'broken', wanted another")
        if word == "other":
            return self.other.read_text(), [self.other]
        return word, []

    def fail(self) -> None:
        self.num_failures += 1

    def watched(self) -> Watched[str]:
        return Watched(self.read, [self.path], self.fail, self.clock)


def driven(directory: Path, steps: Callable[[Files, Callable[[], str]], None]) -> None:
    """Run steps with a call that gives the current content, a second after the last one."""
    files = Files(directory)
    files.path.write_text("one")
    watched = files.watched()

    def current() -> str:
        files.clock.move(1.0)
        return asyncio.run(watched.current())

    steps(files, current)


def test_a_changed_file_is_read_anew_and_an_unchanged_one_is_not(tmp_path: Path):
    def steps(files: Files, current: Callable[[], str]) -> None:
        assert [current(), current()] == ["one", "one"]
        assert files.num_reads == 1
        files.path.write_text("three")
        assert [current(), current()] == ["three", "three"]
        assert files.num_reads == 2

    driven(tmp_path, steps)


def test_files_are_looked_at_once_a_second_at_most(tmp_path: Path):
    files = Files(tmp_path)
    files.path.write_text("one")
    watched = files.watched()
    files.path.write_text("three")

    files.clock.move(0.9)
    assert asyncio.run(watched.current()) == "one"
    files.clock.move(0.1)
    assert asyncio.run(watched.current()) == "three"


def test_a_broken_file_leaves_the_former_content_until_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def steps(files: Files, current: Callable[[], str]) -> None:
        files.path.write_text("broken")
        assert [current(), current()] == ["one", "one"]
        assert files.num_failures == 1
        files.path.write_text("mended")
        assert current() == "mended"
        assert files.num_failures == 1

    driven(tmp_path, steps)
    assert "what was read before stays in force: word: got 'broken'" in caplog.text


def test_files_that_a_file_names_are_watched_from_then_on(tmp_path: Path):
    def steps(files: Files, current: Callable[[], str]) -> None:
        files.other.write_text("two")
        files.path.write_text("other")
        assert current() == "two"
        files.other.write_text("four")
        assert current() == "four"

    driven(tmp_path, steps)


def test_a_request_that_ends_while_it_reads_loses_no_change(tmp_path: Path):
    files = Files(tmp_path)
    files.path.write_text("one")
    watched = files.watched()
    files.path.write_text("three")
    files.clock.move(1.0)

    async def cancelled() -> None:
        reading = asyncio.ensure_future(watched.current())
        await asyncio.sleep(0)  # lets it begin
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()

    asyncio.run(cancelled())
    files.clock.move(1.0)

    assert asyncio.run(watched.current()) == "three"


def test_a_filter_follows_its_file(tmp_path: Path):
    clock, registry = Clock(), CollectorRegistry()
    path = tmp_path / "filter.toml"
    path.write_text(MASK, encoding="utf-8")
    content_filter = FileFilter(path, ProtectionMetrics(registry), clock)

    clock.move(1.0)
    path.write_text(MASK.replace('"bad"', '"worse"'), encoding="utf-8")
    assert applied(content_filter, "bad, worse") == "bad, #"

    clock.move(1.0)
    path.write_text("[[", encoding="utf-8")
    assert applied(content_filter, "bad, worse") == "bad, #"
    assert value_of(registry, "reload_failures_total", file="content_filter") == 1
