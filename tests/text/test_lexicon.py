import logging
import os
import time
from pathlib import Path

import pytest

from chattts_triton.errors import ModelLoadError
from chattts_triton.text.lexicon import CHECK_INTERVAL_S, Lexicon, read_entries
from chattts_triton.text.normalizer import TextNormalizer

CONTENT = """# our names
AI\tA I
GPT\tG P T

重庆\t虫庆
重庆火锅\t虫庆火锅
c++\tC plus plus
café\tkaffay
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lexicon.tsv"
    path.write_text(CONTENT, encoding="utf-8")
    return path


def change(path: Path, content: str) -> None:
    """Write the file with a time of its own, whatever the clock of the file system resolves."""
    path.write_text(content, encoding="utf-8")
    later = time.time() + 10
    os.utime(path, (later, later))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("AI", "A I"),
        ("ai和Ai", "A I和A I"),
        ("AIM at FAIR", "AIM at FAIR"),
        ("AI2", "AI2"),
        ("用AI写", "用A I写"),
        ("AI, GPT!", "A I, G P T!"),
        ("吃重庆火锅在重庆", "吃虫庆火锅在虫庆"),
        ("C++ code", "C plus plus code"),
        ("c++11", "C plus plus11"),
        ("", ""),
    ],
)
def test_whole_words_are_replaced_the_longest_first(path: Path, text: str, wanted: str) -> None:
    assert read_entries(path).apply(text) == wanted


def test_what_was_put_in_is_not_replaced_again(path: Path) -> None:
    path.write_text("甲\t乙甲\n乙\t丙\n", encoding="utf-8")

    assert read_entries(path).apply("甲乙") == "乙甲丙"


def test_an_empty_file_changes_nothing(path: Path) -> None:
    path.write_text("# nothing yet\n", encoding="utf-8")

    assert read_entries(path).apply("甲AI") == "甲AI"


def test_a_byte_order_mark_and_line_ends_of_windows_are_no_part_of_the_words(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfAI\tA I\r\nGPT\tG\r\n")

    assert read_entries(path).apply("AI GPT") == "A I G"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("AI\tA I\nGPT\n", r"line 2: got 'GPT', wanted a word, a tab and a replacement"),
        ("AI\tA\tI\n", "line 1: "),
        ("\tA I\n", "line 1: "),
        ("AI\t \n", "line 1: "),
        ("# x\n\nAI\tA\nai\tB\n", "line 4: 'ai' is there already"),
        ("\u200b\tA\n", "line 1: "),
    ],
)
def test_a_wrong_line_is_named_by_its_number(path: Path, content: str, message: str) -> None:
    path.write_text(content, encoding="utf-8")

    with pytest.raises(ModelLoadError, match=message):
        Lexicon(path)


def test_an_unreadable_file_is_a_load_error(path: Path) -> None:
    path.write_bytes(b"\xff\t\xff")

    with pytest.raises(ModelLoadError, match="cannot be read"):
        Lexicon(path)
    with pytest.raises(ModelLoadError, match="cannot be read"):
        TextNormalizer({}, path)


def test_a_file_that_does_not_exist_yet_is_taken_up_once_it_is_there(path: Path) -> None:
    path.unlink()
    clock = Clock()
    lexicon = Lexicon(path, clock)
    assert lexicon.entries().apply("AI") == "AI"

    path.write_text("AI\tartificial intelligence\n", encoding="utf-8")
    clock.now_s += CHECK_INTERVAL_S

    assert lexicon.entries().apply("AI") == "artificial intelligence"


def test_a_changed_file_is_read_again_once_a_second_at_most(path: Path) -> None:
    clock = Clock()
    lexicon = Lexicon(path, clock)
    change(path, "AI\tartificial intelligence\n")

    assert lexicon.entries().apply("AI") == "A I"
    clock.now_s += CHECK_INTERVAL_S
    assert lexicon.entries().apply("AI") == "artificial intelligence"


def test_an_unchanged_file_is_not_read_again(path: Path) -> None:
    clock = Clock()
    lexicon = Lexicon(path, clock)
    before = lexicon.entries()

    clock.now_s += CHECK_INTERVAL_S

    assert lexicon.entries() is before


def test_a_wrong_or_missing_file_leaves_the_former_words_and_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    lexicon = Lexicon(path, clock)
    change(path, "AI\n")

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now_s += CHECK_INTERVAL_S
            assert lexicon.entries().apply("AI") == "A I"
        wrong = [record.getMessage() for record in caplog.records]
        path.unlink()
        for _ in range(3):
            clock.now_s += CHECK_INTERVAL_S
            assert lexicon.entries().apply("AI") == "A I"

    assert len(wrong) == 1
    assert "line 1: " in wrong[0]
    assert len(caplog.records) == 2
    path.write_text("AI\tnew words\n", encoding="utf-8")
    clock.now_s += CHECK_INTERVAL_S
    assert lexicon.entries().apply("AI") == "new words"


def test_the_lexicon_comes_before_everything_else_and_leaves_tags_alone(path: Path) -> None:
    path.write_text("laugh\tsmile\n3号\tsan号\n停\t[uv_break]\nＡＢ\talpha\n", encoding="utf-8")
    normalizer = TextNormalizer({}, path)

    got = normalizer.normalize("[laugh]laugh在3号，好停你，ab，３号")

    assert got.text == "[laugh]smile在san号，好[uv_break]你，alpha，san号"
    assert got.tags == ("[laugh]", "[uv_break]")
    assert [stage.name for stage in got.stages] == [
        "received",
        "letters",
        "lexicon",
        "figures",
        "characters",
        "homophones",
    ]
