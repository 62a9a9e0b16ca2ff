"""A thread on which requests take turns, a piece of each at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

LOGGER = logging.getLogger(__name__)


class Lane:
    """Takes jobs from any thread and works on all of them in turns, so a short one ends early.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Iterator[None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Iterator[None]) -> None:
        """Have a job done: each of its values ends a turn. What it raises is logged."""
        self._jobs.put(job)

    def close(self) -> None:
        """Do what was given so far, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                if self._jobs.empty():
                    return
                self._jobs.put(None)  # behind the jobs that are still going on
            elif _goes_on(job):
                self._jobs.put(job)
            del job  # or the last request's arrays would stay until the next one


def _goes_on(job: Iterator[None]) -> bool:
    """Take a turn of a job; False when it has ended."""
    try:
        next(job)
    except StopIteration:
        return False
    except Exception:
        LOGGER.exception("a job failed")
        return False
    return True
