"""The file of API keys: read strictly, replaced in one rename, edited by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chattts_triton import json_file
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
        content = json_file.parse(text)
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
    with ExitStack() as stack:
        try:
            stack.enter_context(json_file.locked(path))
        except OSError as error:
            raise InvalidRequestError(f"{path}: cannot be written: {error}") from error
        keys = read_keys(path) if path.exists() else {}
        yield keys
        _write(path, keys)


def _write(path: Path, keys: Mapping[str, ApiKey]) -> None:
    content = {_FIELD: {name: key.to_json() for name, key in keys.items()}}
    try:
        json_file.replace(path, content, mode=_MODE)
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be written: {error}") from error


def _entry(source: str, name: str, content: object) -> ApiKey:
    try:
        return ApiKey.from_json(name, content)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{source}: key {name!r}: {error}") from None
