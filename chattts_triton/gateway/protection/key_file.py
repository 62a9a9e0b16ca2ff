"""The file of API keys: read strictly, replaced in one rename, edited by one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.protection.keys import ApiKey

_FIELD = "keys"
_MODE = 0o600

Keys = dict[str, ApiKey]


def parse_keys(source: str, text: str) -> Keys:
    """Every key by its name.

    Args:
        source: Where the text comes from, for messages.
        text: JSON: `{"keys": {NAME: {"sha256": ..., "requests": ..., ...}}}`.

    Raises:
        InvalidRequestError: It is something else; the message names the key and its field.
    """
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{source}: cannot be read: {error}") from None
    if not isinstance(content, dict) or list(content) != [_FIELD]:
        raise InvalidRequestError(f'{source}: wanted {{"{_FIELD}": {{NAME: {{...}}}}}}')
    entries = content[_FIELD]
    if not isinstance(entries, dict):
        raise InvalidRequestError(f'{source}: wanted {{"{_FIELD}": {{NAME: {{...}}}}}}')
    keys = {name: _entry(source, name, entry) for name, entry in entries.items()}
    if len({key.sha256 for key in keys.values()}) < len(keys):
        raise InvalidRequestError(f"{source}: two names have the same key")
    return keys


def read_keys(path: Path) -> Keys:
    """Every key of a file by its name.

    Raises:
        InvalidRequestError: It cannot be read, or as of `parse_keys`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error}") from None
    return parse_keys(str(path), text)


@contextmanager
def editing(path: Path) -> Iterator[Keys]:
    """Keys to change within the block, written when it ends well; other editors wait.

    Raises:
        InvalidRequestError: The file cannot be read or written.
    """
    try:
        # The directory, since the file itself is replaced and its lock with it.
        directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be written: {error}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        keys = read_keys(path) if path.exists() else {}
        yield keys
        _write(path, keys)
    finally:
        os.close(directory)


def _write(path: Path, keys: Mapping[str, ApiKey]) -> None:
    content = {_FIELD: {name: key.to_json() for name, key in keys.items()}}
    target = path.resolve()  # a symbolic link stays one
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else _MODE
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            try:
                file.write(json.dumps(content, indent=2) + "\n")
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be written: {error}") from error


def _entry(source: str, name: str, content: object) -> ApiKey:
    try:
        return ApiKey.from_json(name, content)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{source}: key {name!r}: {error}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two equal names Python would keep the last without a word."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name is there twice")
    return content
