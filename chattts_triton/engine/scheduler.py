"""Who runs and who waits. Plain Python: no arrays, no ONNX Runtime, no threads."""

from __future__ import annotations

from bisect import insort

from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import InvalidRequestError, OverloadedError

PRIORITY_STEP = 16  # places in the queue that one step of priority is worth


class Scheduler:
    """A queue by arrival and priority, over a fixed number of slots.

    A priority is a head start and no more: a sequence takes the place `ticket + PRIORITY_STEP *
    priority`, its ticket being a count of arrivals. So among equals the first come is the first
    served, and a sequence is overtaken by so many later ones at the most as its priority number
    is larger, times `PRIORITY_STEP`: nobody starves.

    `waiting` is in the order of service. `running[i]` owns KV slot i, so the batch is always the
    prefix of used slots. A prompt that is run piece by piece has the last slot, and there is only
    one at a time.
    """

    def __init__(self, max_num_seqs: int, max_waiting: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_waiting = max_waiting
        self._most = max_waiting + max_num_seqs
        self._num_arrived = 0
        self.waiting: list[Sequence] = []
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
        for sequence in sequences:
            self._num_arrived += 1
            place = self._num_arrived + PRIORITY_STEP * sequence.priority
            sequence.place = (place, self._num_arrived)
            insort(self.waiting, sequence, key=_place)

    def add_first(self, sequence: Sequence) -> None:
        """Let a sequence wait before all that came by `add`, however full the queue is."""
        self._num_arrived += 1
        sequence.place = (0, self._num_arrived)  # those of `add` begin at 1
        insort(self.waiting, sequence, key=_place)

    def drop(self, sequences: set[Sequence]) -> None:
        """Let these wait no longer."""
        self.waiting = [sequence for sequence in self.waiting if sequence not in sequences]

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
        """The sequence whose prompt is to be run: one that has begun, else the first that waits.

        That one gets the next slot, if there is one. One a step: a prefill holds every running
        sequence up, so it never meets a second one.
        """
        if self.prefilling:
            return self.prefilling
        if not self.waiting or len(self.running) == self._max_num_seqs:
            return None
        sequence = self.waiting.pop(0)
        self.running.append(sequence)
        return sequence

    @property
    def prefilling(self) -> Sequence | None:
        """The sequence that has a slot, but not yet its whole prompt in it."""
        return self.running[-1] if self.running and not self.running[-1].is_prefilled else None

    def remove(self, slot: int) -> list[tuple[int, int]]:
        """Free a slot; the last running sequence moves into it.

        A sequence in prefill stays behind those that decode: the last of these moves, then it.

        Returns:
            From which slot to which, in this order; nothing if none has to move.
        """
        last = len(self.running) - 1
        movers = [last - 1, last] if self.prefilling else [last]
        targets = [slot, *movers]
        moves = [(a, b) for a, b in zip(movers, targets, strict=False) if a > slot]
        for source, target in moves:
            self.running[target] = self.running[source]
        self.running.pop()
        return moves

    def has(self, request_id: str) -> bool:
        """Whether a sequence of that request waits or runs."""
        return any(
            sequence.request_id == request_id
            for sequences in (self.running, self.waiting)
            for sequence in sequences
        )


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.place
