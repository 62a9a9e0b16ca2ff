"""Memory of a process and all its children, a page that several share counted once."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

INTERVAL_S = 0.2


def pss_mb(root: psutil.Process) -> float:
    """PSS of a process and its children, in megabytes."""
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # it ended between the two looks
            continue
    return total / 1e6


class PeakMemory:
    """Looks several times a second while its context lasts; `peak_mb` is the most that it saw."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="peak-memory")
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        self.look()
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._watcher.join()

    def look(self) -> None:
        """Look once; a lower figure than before changes nothing."""
        self.peak_mb = max(self.peak_mb, pss_mb(self._root))

    def _watch(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            self.look()
