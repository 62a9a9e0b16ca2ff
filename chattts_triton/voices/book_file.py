"""The file voices.json: read strictly, replaced in one rename, edited by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.manifest import DEFAULT_NAME, member_name
from chattts_triton.tensors import PREPROCESS
from chattts_triton.voices.entry import VoiceEntry

FILE_NAME = "voices.json"
MAX_FILE_BYTES = 16 << 20
_KEY = "voices"

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
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
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
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    target = path.resolve()  # a symbolic link stays one
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be written: {error}") from error


@contextmanager
def editing(path: Path) -> Iterator[Entries]:
    """Entries to change within the block, written when it ends well; other editors wait.

    A file that does not exist yet is an empty book.

    Raises:
        ModelLoadError: The directory is missing, or the file cannot be read or written.
    """
    try:
        # The directory, since the file itself is replaced and its lock with it.
        directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be written: {error}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        entries = read_entries(path) if path.exists() else {}
        yield entries
        write_entries(path, entries)
    finally:
        os.close(directory)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal keys Python would keep the last without a word."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {key!r} is there twice")
        content[key] = value
    return content


def _read_entry(path: Path, name: str, content: object) -> VoiceEntry:
    try:
        return VoiceEntry.from_json(name, content)
    except InvalidRequestError as error:
        raise ModelLoadError(f"{path}: voice {name!r}: {error}") from None
