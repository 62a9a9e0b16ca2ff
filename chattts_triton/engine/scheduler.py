"""Who runs and who waits. Plain Python: no arrays, no ONNX Runtime, no threads."""

from __future__ import annotations

from collections import deque

from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import InvalidRequestError, OverloadedError


class Scheduler:
    """First come, first served, over a fixed number of slots.

    `running[i]` owns KV slot i, so the batch is always the prefix of used slots.
    """

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_waiting = max_waiting
        self._most = max_waiting + max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequences: list[Sequence]) -> None:
        """Let sequences wait for a slot: all of them, or none.

        Raises:
            InvalidRequestError: They would not fit even if nothing else ran or waited.
            OverloadedError: They would not all fit into the queue now.
        """
        self.check_capacity(len(sequences))
        # What the free slots will take in the coming steps does not count as waiting.
        room = self._most - len(self.running) - len(self.waiting)
        if len(sequences) > room:
            raise OverloadedError(
                f"waiting queue is full: {len(self.running)} running, {len(self.waiting)} waiting, "
                f"{len(sequences)} more do not fit (max_num_seqs {self._max_num_seqs}, "
                f"max_waiting {self._max_waiting})"
            )
        self.waiting.extend(sequences)

    def check_capacity(self, num_sequences: int) -> None:
        """Refuse so many sequences in one request if they can never fit.

        Raises:
            InvalidRequestError: There are more than queue and slots hold together.
        """
        if num_sequences > self._most:
            raise InvalidRequestError.of(
                "TEXT", num_sequences, f"at most {self._most} segments in one call"
            )

    def schedule(self) -> Sequence | None:
        """Give the longest-waiting sequence the next slot, if there is one.

        One a step: a prefill holds every running sequence up, so it never meets a second one.
        """
        if not self.waiting or len(self.running) == self._max_num_seqs:
            return None
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return sequence

    def remove(self, slot: int) -> int | None:
        """Free a slot; the last running sequence moves into it.

        Returns:
            The slot that the mover came from, or None if none had to move.
        """
        mover = self.running.pop()
        last = len(self.running)
        if slot == last:
            return None
        self.running[slot] = mover
        return last
