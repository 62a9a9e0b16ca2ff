"""What is made of files, and made anew when they change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from chattts_triton.errors import InvalidRequestError

LOGGER = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class _Seen(Generic[T]):
    content: T
    paths: frozenset[Path]
    stamp: Stamp  # of the paths, taken before they were read


class Watched(Generic[T]):
    """The newest good content of files; called in the event loop.

    Args:
        read: Gives the content and the files that it was read from.
        paths: Files to watch besides those.
        on_failure: Is called when changed files cannot be read; the former content stays.
        now: A clock, in seconds.

    Raises:
        InvalidRequestError: The files cannot be read at the start.
    """

    def __init__(
        self,
        read: Callable[[], tuple[T, Iterable[Path]]],
        paths: Iterable[Path],
        on_failure: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._base = frozenset(paths)
        self._on_failure = on_failure
        self._now = now
        self._is_reading = False
        self._seen = self._read_whole(self._base)
        self._look_at_s = now() + LOOK_INTERVAL_S

    async def current(self) -> T:
        """The content; looks at the files at most once a second."""
        if self._now() >= self._look_at_s and not self._is_reading:
            self._look_at_s = self._now() + LOOK_INTERVAL_S
            stamp = _stamp(self._seen.paths)
            if stamp != self._seen.stamp:
                await self._read_again(stamp)
        return self._seen.content

    async def _read_again(self, stamp: Stamp) -> None:
        self._is_reading = True
        try:
            # In a thread: a long list takes its time, and audio is being sent meanwhile.
            self._seen = await asyncio.to_thread(self._read_whole, self._seen.paths)
            LOGGER.info("read anew: %s", self._names())
        except InvalidRequestError as error:
            LOGGER.error("what was read before stays in force: %s", error)
            self._seen = replace(self._seen, stamp=stamp)  # not again before the next change
            self._on_failure()
        finally:
            self._is_reading = False

    def _read_whole(self, paths: frozenset[Path]) -> _Seen[T]:
        """Read, and read again if there turned out to be other files than were looked at before."""
        while True:
            stamp = _stamp(paths)
            content, more = self._read()
            wanted = self._base | frozenset(more)
            if wanted == paths:
                return _Seen(content, paths, stamp)
            paths = wanted

    def _names(self) -> str:
        return ", ".join(sorted(map(str, self._seen.paths)))


def _stamp(paths: Iterable[Path]) -> Stamp:
    return tuple(_facts(path) for path in sorted(paths))


def _facts(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
