"""The scheduler as several threads use it, and the sleep of the one that serves it."""

from __future__ import annotations

import threading
import time

from chattts_triton.config import EngineConfig
from chattts_triton.engine.scheduler import Scheduler
from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    OverloadedError,
    RequestCancelledError,
)

STOPPING = "the server is stopping"


class SharedScheduler:
    """A scheduler behind a lock, which the engine's thread sleeps on while there is nothing to do.

    Any thread may add, abort and read numbers. All else is for the engine's thread; only that
    changes `running`, and so may read it without the lock.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._scheduler = Scheduler(config.max_num_seqs, config.max_waiting)
        self._queue_delay_s = config.max_queue_delay_us / 1e6
        self._changed = threading.Condition()
        self._aborted: set[str] = set()
        self._is_stepping = False
        self._is_stopping = False

    @property
    def running(self) -> list[Sequence]:
        """`running[i]` owns KV slot i."""
        return self._scheduler.running

    @property
    def prefilling(self) -> Sequence | None:
        """The last of `running`, if only a part of its prompt has been run."""
        return self._scheduler.prefilling

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._scheduler.waiting)

    def request_ids(self) -> tuple[set[str], set[str]]:
        """The requests of what runs, and of what waits."""
        with self._changed:
            running, waiting = list(self._scheduler.running), list(self._scheduler.waiting)
        return {s.request_id for s in running}, {s.request_id for s in waiting}

    def check_capacity(self, num_sequences: int) -> None:
        """Refuse so many sequences in one request if they can never fit.

        Raises:
            InvalidRequestError: There are more than queue and slots hold together.
        """
        self._scheduler.check_capacity(num_sequences)

    def add(self, sequences: list[Sequence]) -> None:
        """Let sequences wait for a slot: all of them, or none.

        Raises:
            InvalidRequestError: They would not fit even if nothing else ran or waited.
            OverloadedError: They would not all fit into the queue now, or `stop` was called.
        """
        with self._changed:
            if self._is_stopping:
                raise OverloadedError(STOPPING)
            self._scheduler.add(sequences)
            self._changed.notify()

    def add_first(self, sequence: Sequence) -> bool:
        """Let a sequence wait before all newcomers; False, without it, once `stop` was called."""
        with self._changed:
            if self._is_stopping:
                return False
            self._scheduler.add_first(sequence)
            self._changed.notify()
            return True

    def abort(self, request_id: str) -> None:
        """Have the next `begin_step` end a request's sequences, if it has any."""
        with self._changed:
            # Within a step a sequence may just have ended, and what follows is not queued yet.
            if self._is_stepping or self._scheduler.has(request_id):
                self._aborted.add(request_id)
                self._changed.notify()

    def stop(self) -> None:
        """Take nothing more, and wake the engine's thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def wait_for_work(self) -> bool:
        """Sleep until there is something to do; False once `stop` was called."""
        with self._changed:
            scheduler = self._scheduler
            if not scheduler.running:
                was_idle = not scheduler.waiting
                self._changed.wait_for(lambda: self._is_stopping or bool(scheduler.waiting))
                if was_idle:
                    self._wait_for_company()
            return not self._is_stopping

    def _wait_for_company(self) -> None:
        """Let others join the first sequences of a batch, unless one of these is to end."""
        until_s = time.monotonic() + self._queue_delay_s
        while not (self._is_stopping or self._aborted):
            deadlines_s = [s.deadline.at_s for s in self._scheduler.waiting if s.deadline]
            remaining_s = min([until_s, *deadlines_s]) - time.monotonic()
            if remaining_s <= 0:
                return
            self._changed.wait(remaining_s)

    def begin_step(self) -> dict[Sequence, ChatTTSError]:
        """Find what was cancelled or is past its deadline; of these, none waits any longer.

        Returns:
            All that are to end, in slots or not, and why.
        """
        now_s = time.monotonic()
        with self._changed:
            self._is_stepping = True
            aborted, self._aborted = self._aborted, set()
            overdue = {
                sequence: error
                for sequence in (*self._scheduler.running, *self._scheduler.waiting)
                if (error := _reason_to_end(sequence, aborted, now_s))
            }
            if overdue:
                self._scheduler.drop(set(overdue))
        return overdue

    def end_step(self) -> None:
        """Forget the cancellations that a step left over, if nothing is left to cancel."""
        with self._changed:
            self._is_stepping = False
            if not self._scheduler.running and not self._scheduler.waiting:
                self._aborted.clear()

    def schedule(self) -> Sequence | None:
        """The sequence whose prompt is to be run next, with a slot, if there is one."""
        with self._changed:
            return self._scheduler.schedule()

    def remove(self, slot: int) -> list[tuple[int, int]]:
        """Free a slot; tells which sequences move, from which slot to which."""
        with self._changed:
            return self._scheduler.remove(slot)

    def take_waiting(self) -> list[Sequence]:
        """Empty the queue."""
        with self._changed:
            waiting = self._scheduler.waiting
            self._scheduler.drop(set(waiting))
            return waiting


def _reason_to_end(sequence: Sequence, aborted: set[str], now_s: float) -> ChatTTSError | None:
    if sequence.request_id in aborted:
        return RequestCancelledError(f"cancelled after {sequence.num_steps} steps")
    if sequence.deadline and now_s >= sequence.deadline.at_s:
        limit_ms = round(sequence.deadline.timeout_s * 1000)
        return DeadlineExceededError(
            f"deadline of {limit_ms} ms exceeded after {sequence.num_steps} steps"
        )
    return None
