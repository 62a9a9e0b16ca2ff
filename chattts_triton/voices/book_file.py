"""The file voices.json: read strictly, replaced in one rename, edited by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chattts_triton import json_file
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.manifest import DEFAULT_NAME, member_name
from chattts_triton.tensors import PREPROCESS
from chattts_triton.voices.entry import VoiceEntry

FILE_NAME = "voices.json"
MAX_FILE_BYTES = 16 << 20
_KEY = "voices"
_MODE = 0o644

Entries = dict[str, VoiceEntry]


def book_path(repository: Path, name: str = DEFAULT_NAME) -> Path:
    """Where a set of models keeps its book: beside its exports, which come and go without it."""
    return repository / member_name(name, PREPROCESS.name) / FILE_NAME


def read_entries(path: Path) -> Entries:
    """Every entry by its name, in the order of the file.

    Raises:
        ModelLoadError: The file is missing, too large, or no valid book; the message names the
            entry and its field.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ModelLoadError(f"{path}: wanted at most {MAX_FILE_BYTES} bytes")
        content = json_file.parse(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    if (
        not isinstance(content, dict)
        or list(content) != [_KEY]
        or not isinstance(content[_KEY], dict)
    ):
        raise ModelLoadError(f'{path}: wanted {{"{_KEY}": {{NAME: {{...}}}}}}')
    return {name: _read_entry(path, name, entry) for name, entry in content[_KEY].items()}


def write_entries(path: Path, entries: Mapping[str, VoiceEntry]) -> None:
    """Replace the file; a reader sees the former book or this one, never a part.

    Raises:
        ModelLoadError: It cannot be written; the former one is still there.
    """
    content = {_KEY: {name: entry.to_json() for name, entry in entries.items()}}
    try:
        json_file.replace(path, content, mode=_MODE)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be written: {error}") from error


@contextmanager
def editing(path: Path) -> Iterator[Entries]:
    """Entries to change within the block, written when it ends well; other editors wait.

    A file that does not exist yet is an empty book.

    Raises:
        ModelLoadError: The directory is missing, or the file cannot be read or written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(json_file.locked(path))
        except OSError as error:
            raise ModelLoadError(f"{path}: cannot be written: {error}") from error
        entries = read_entries(path) if path.exists() else {}
        yield entries
        write_entries(path, entries)


def _read_entry(path: Path, name: str, content: object) -> VoiceEntry:
    try:
        return VoiceEntry.from_json(name, content)
    except InvalidRequestError as error:
        raise ModelLoadError(f"{path}: voice {name!r}: {error}") from None
