"""A JSON file that people and programs edit: one editor at a time, replaced in one rename."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def parse(text: str) -> Any:
    """The content of a JSON text.

    Raises:
        ValueError: It is none, or a name is twice in one object, of which Python would keep the
            last without a word.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other editors of a file waiting; it need not exist yet.

    Raises:
        OSError: Its directory is missing or cannot be read.
    """
    # The directory, since the file itself is replaced and its lock with it.
    directory = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def replace(path: Path, content: object, *, mode: int) -> None:
    """Write a file; a reader sees the former content or this one, never a part.

    Args:
        path: Where; a symbolic link stays one.
        content: What `json.dumps` takes.
        mode: Permissions of a new file; an old one keeps its own.

    Raises:
        OSError: It cannot be written; the former one is still there.
    """
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else mode
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            file.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink()
            raise


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the key {name!r} is there twice")
        content[name] = value
    return content
