"""The thread that responses leave on, so that a slow send never holds a step of the engine up."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

LOGGER = logging.getLogger(__name__)


class Responder:
    """Runs what it is given, in order; any thread may give it something.

    Args:
        on_interval: Called on the same thread about every `interval_s`, whether there is anything
            to send or not.
        interval_s: How often.
    """

    def __init__(self, on_interval: Callable[[], None], interval_s: float) -> None:
        self._on_interval = on_interval
        self._interval_s = interval_s
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="responder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, respond: Callable[[], None]) -> None:
        """Have `respond` called; what it raises is logged."""
        self._work.put(respond)

    def close(self) -> None:
        """Run what was given so far, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _loop(self) -> None:
        due_s = time.monotonic() + self._interval_s
        while True:
            if time.monotonic() >= due_s:
                self._run(self._on_interval)
                due_s = time.monotonic() + self._interval_s
            try:
                work = self._work.get(timeout=max(due_s - time.monotonic(), 0))
            except queue.Empty:
                continue
            if work is None:
                return
            self._run(work)
            del work  # or the last request's arrays would stay until the next one

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            LOGGER.exception("the responder failed in a part of its work")
