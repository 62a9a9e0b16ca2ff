import json
import threading
from pathlib import Path
from typing import Any

import pytest
from voices_fixtures import SAMPLE_STRING, write_book

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.book_file import editing, read_entries, write_entries
from chattts_triton.voices.entry import VoiceEntry

FULL = VoiceEntry(
    "小红-2",
    speaker="伀",
    prompt=SAMPLE_STRING,
    text="四川美食确实以辣闻名",
    description="A voice for tests.",
    language="zh",
    tags=("warm", "slow"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "voices.json"


def test_a_book_that_is_written_is_read_back_in_its_order(path: Path) -> None:
    entries = {"b": VoiceEntry("b", seed=0), FULL.name: FULL, "a": VoiceEntry("a", seed=7)}

    write_entries(path, entries)

    assert read_entries(path) == entries
    assert list(read_entries(path)) == ["b", "小红-2", "a"]


def test_only_what_is_set_is_written_and_as_it_reads(path: Path) -> None:
    write_entries(path, {"b": VoiceEntry("b", seed=0), FULL.name: FULL})

    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["voices"]["b"] == {"seed": 0, "language": "any"}
    assert "四川美食" in text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (5, "entry: got 5, wanted a JSON object"),
        ({}, "seed, speaker: got none, wanted one of the two"),
        ({"seed": 1, "speaker": "伀"}, "seed, speaker: got both, wanted one of the two"),
        ({"seed": -1}, "seed: got -1, wanted 0 to 9223372036854775807"),
        ({"seed": 2**63}, "seed: got 9223372036854775808, wanted 0 to 9223372036854775807"),
        ({"seed": True}, "seed: got True, wanted an integer"),
        ({"seed": 1.0}, "seed: got 1.0, wanted an integer"),
        ({"seed": "1"}, "seed: got '1', wanted an integer"),
        ({"seed": None}, "seed: got None, wanted an integer"),
        ({"seed": 1, "sead": 2}, "'sead': unknown, known are seed, speaker, prompt, text, "),
        ({"seed": 1, "name": "b"}, "'name': unknown, known are seed, "),
        ({"speaker": 5}, "speaker: got 5, wanted a string"),
        ({"seed": 1, "text": "hello"}, "text: got one without a prompt"),
        ({"seed": 1, "language": "fr"}, "language: got 'fr', wanted any or zh or en"),
        ({"seed": 1, "tags": "warm"}, "tags: got 'warm', wanted a list of strings"),
        ({"seed": 1, "tags": ["a", 5]}, "tags: got ['a', 5], wanted a list of strings"),
        ({"seed": 1, "tags": ["a", "a"]}, "tags: got ('a', 'a'), wanted at most 16, each once"),
        ({"seed": 1, "tags": ["a b"]}, "tags: got 'a b', wanted 1 to 40 letters"),
        ({"seed": 1, "tags": [str(i) for i in range(17)]}, "tags: got ("),
        ({"seed": 1, "description": "a\nb"}, "description: got 'a\\nb', wanted one line"),
        ({"seed": 1, "description": "\ud800"}, "description: got '\\ud800', wanted one line"),
        ({"seed": 1, "description": "a" * 501}, "description: got 501 characters, wanted at most"),
        ({"seed": 1, "prompt": "伀", "text": "a" * 1001}, "text: got 1001 characters, wanted at"),
    ],
)
def test_a_malformed_entry_is_named_with_its_field(path: Path, entry: Any, message: str) -> None:
    write_book(path, {"good": {"seed": 1}, "bad": entry})

    with pytest.raises(ModelLoadError) as caught:
        read_entries(path)

    assert str(caught.value).startswith(f"{path}: voice 'bad': {message}")


@pytest.mark.parametrize("name", ["", "a" * 41, "seed:5", "a b", "_a", "-a", ".a", "a/b", "a\n"])
def test_a_name_that_could_be_taken_for_something_else_is_refused(path: Path, name: str) -> None:
    write_book(path, {name: {"seed": 1}})

    with pytest.raises(ModelLoadError, match=r"voices\.json: voice .*: name: got .*, wanted 1 to "):
        read_entries(path)


@pytest.mark.parametrize("name", ["a", "0", "Ana.Maria_2-b", "小红", "Zoë", "a" * 40])
def test_names_of_letters_and_digits_of_any_script_are_taken(path: Path, name: str) -> None:
    write_book(path, {name: {"seed": 1}})

    assert read_entries(path) == {name: VoiceEntry(name, seed=1)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read: Expecting value"),
        (b'{"voices": {', "cannot be read: Expecting"),
        (b"\xff", "cannot be read: 'utf-8' codec"),
        (b"[" * 100_000, "cannot be read: "),
        (b"[]", 'wanted {"voices": {NAME: {...}}}'),
        (b"{}", 'wanted {"voices": {NAME: {...}}}'),
        (b'{"voices": []}', 'wanted {"voices": {NAME: {...}}}'),
        (b'{"voices": {}, "more": 1}', 'wanted {"voices": {NAME: {...}}}'),
        (b'{"voices": {"a": {"seed": 1}, "a": {"seed": 2}}}', "cannot be read: the key 'a' is"),
        (b'{"voices": {"a": {"seed": 1, "seed": 2}}}', "cannot be read: the key 'seed' is there"),
        (b" " * (16 * 2**20 + 1), "wanted at most 16777216 bytes"),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_a_load_error(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)

    with pytest.raises(ModelLoadError) as caught:
        read_entries(path)

    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_file_is_a_load_error(path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"voices\.json: cannot be read: .*No such file"):
        read_entries(path)


def test_writing_leaves_one_file_of_the_same_mode(path: Path) -> None:
    write_book(path, {"a": {"seed": 1}})
    path.chmod(0o640)

    write_entries(path, {})

    assert [each.name for each in path.parent.iterdir()] == ["voices.json"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_others_can_read_a_new_file(path: Path) -> None:
    write_entries(path, {})

    assert path.stat().st_mode & 0o777 == 0o644


def test_a_symbolic_link_stays_one(tmp_path: Path, path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = write_book(tmp_path / "elsewhere" / "book.json", {})
    path.symlink_to(target)

    with editing(path) as entries:
        entries["a"] = VoiceEntry("a", seed=1)

    assert path.is_symlink()
    assert list(read_entries(target)) == ["a"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(path: Path) -> None:
    path.mkdir()

    with pytest.raises(ModelLoadError, match=r"voices\.json: cannot be written: "):
        write_entries(path, {})

    assert list(path.parent.iterdir()) == [path]


def test_a_missing_directory_is_an_error_before_the_edit(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "voices.json"

    with pytest.raises(ModelLoadError, match=r"voices\.json: cannot be written: "), editing(path):
        pytest.fail("the block was entered")


def test_an_edit_that_fails_changes_nothing(path: Path) -> None:
    write_book(path, {"a": {"seed": 1}})
    before = path.read_bytes()

    with pytest.raises(InvalidRequestError), editing(path) as entries:
        entries["b"] = VoiceEntry("b", seed=-1)

    assert path.read_bytes() == before


def test_a_damaged_file_is_not_overwritten(path: Path) -> None:
    path.write_text("{", encoding="utf-8")

    with pytest.raises(ModelLoadError, match="cannot be read"), editing(path) as entries:
        entries["b"] = VoiceEntry("b", seed=1)

    assert path.read_text(encoding="utf-8") == "{"


def test_editors_at_the_same_time_lose_no_entry(path: Path) -> None:
    barrier = threading.Barrier(8)

    def add(index: int) -> None:
        barrier.wait(timeout=30)
        with editing(path) as entries:
            entries[f"voice-{index}"] = VoiceEntry(f"voice-{index}", seed=index)

    threads = [threading.Thread(target=add, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert sorted(read_entries(path)) == [f"voice-{index}" for index in range(8)]
