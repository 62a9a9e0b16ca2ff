"""The voices that are listed: the server's own book where its file is here, and OpenAI's names.

Nothing is decided here: a name that is not listed goes to Triton, which knows its voices.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

LOGGER = logging.getLogger(__name__)

# Applications that were written for OpenAI's API send these. They are speakers drawn from a seed,
# and have no more than the name in common.
OPENAI_VOICES = MappingProxyType(
    {
        name: f"seed:{seed}"
        for seed, name in enumerate(
            (
                *("alloy", "ash", "ballad", "coral", "echo", "fable"),
                *("nova", "onyx", "sage", "shimmer", "verse"),
            ),
            start=1,
        )
    }
)


@dataclass(frozen=True)
class Voice:
    """One voice of the list."""

    name: str
    description: str
    language: str


class VoiceList:
    """Reads the book anew whenever it has changed.

    Args:
        path: The server's `voices.json`, or None.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._fault = ""
        self._voices: dict[str, Voice] = {}

    def voices(self) -> list[Voice]:
        """Those of the book, and OpenAI's names where the book has none of the name."""
        book = self._read()
        drawn = {
            name: Voice(name, f"The random speaker {voice}.", "any")
            for name, voice in OPENAI_VOICES.items()
        }
        return list({**book, **{k: v for k, v in drawn.items() if k not in book}}.values())

    def triton_voice(self, name: str | None) -> str | None:
        """What Triton is sent for a voice that a caller named."""
        if name is None or name in self._read():
            return name
        return OPENAI_VOICES.get(name, name)

    def _read(self) -> dict[str, Voice]:
        if self._path is None:
            return {}
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._seen = seen
                self._voices = _parse(json.loads(self._path.read_text(encoding="utf-8")))
                self._fault = ""
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            # The book is the server's: what it refuses, it says; here the former list remains.
            if self._fault != str(error):
                self._fault = str(error)
                LOGGER.warning("%s: cannot be read: %s", self._path, error)
        return self._voices


def _parse(book: Any) -> dict[str, Voice]:
    return {
        name: Voice(name, str(entry.get("description", "")), str(entry.get("language", "any")))
        for name, entry in book["voices"].items()
    }
