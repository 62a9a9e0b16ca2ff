"""Thousands of things happen to the engine at random from several threads, and none is lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from functools import cache

import numpy as np
from fakes import FakeModelRunner, make_engine, make_sequence, run_alone

from chattts_triton.engine.engine import Engine
from chattts_triton.engine.sequence import Deadline, FinishReason, Sequence, Stage
from chattts_triton.errors import OverloadedError

NUM_CALLERS = 4
EVENTS_OF_EACH = 400
OPEN_AT_ONCE = 24  # sequences of each caller: more in all than the engine takes
CAP = 18
WAIT_S = 120
PROMPTS = (1, 2, 5, 9, 14, FakeModelRunner.NEVER)


class Caller:
    """Adds, continues, aborts and reads on a thread of its own, and keeps what it saw."""

    def __init__(self, engine: Engine, number: int):
        self._engine = engine
        self._number = number
        self._choice = random.Random(number).choice
        self._may_open = threading.Semaphore(OPEN_AT_ONCE)
        self._lock = threading.Lock()
        self.sequences: list[Sequence] = []
        self.ended: Counter[Sequence] = Counter()
        self.wanted: dict[Sequence, int] = {}
        self.read: Counter[Sequence] = Counter()
        self.num_refused = 0

    def run(self) -> None:
        for i in range(EVENTS_OF_EACH):
            event = self._choice([self._add] * 4 + [self._continue, self._abort, self._read])
            event(f"{self._number}:{i}")

    def wait_until_all_have_ended(self) -> None:
        for _ in range(OPEN_AT_ONCE):
            assert self._may_open.acquire(timeout=WAIT_S)

    def _add(self, request_id: str) -> None:
        sequences = [self._open(request_id) for _ in range(self._choice([1, 1, 2, 4]))]
        try:
            self._engine.add_request(sequences)
        except OverloadedError:
            self.num_refused += 1
            self._may_open.release(len(sequences))
            self.wait_until_all_have_ended()
            self._may_open.release(OPEN_AT_ONCE)
        else:
            self.sequences += sequences

    def _continue(self, request_id: str) -> None:
        if self.sequences:
            request_id = self._choice(self.sequences[-8:]).request_id
        self.sequences.append(self._open(request_id))
        self._engine.continue_request(self.sequences[-1])

    def _abort(self, request_id: str) -> None:
        if self.sequences:
            request_id = self._choice(self.sequences[-60:]).request_id
        self._engine.abort(request_id)

    def _read(self, _: str) -> None:
        sequence = self._choice(self.sequences[-16:] or [None])
        if sequence is None or sequence in self.wanted:
            return
        wanted = self.wanted[sequence] = self._choice(range(1, CAP))
        sequence.notify_at(wanted, lambda: self._on_read(sequence, wanted))

    def _open(self, request_id: str) -> Sequence:
        assert self._may_open.acquire(timeout=WAIT_S)
        timeout_s = self._choice([None] * 7 + [-1.0, 0.002, WAIT_S])
        sequence = make_sequence(
            self._choice(PROMPTS),
            [],
            seed=self._choice([0, 1, 2]),
            cap=CAP,
            request_id=request_id,
            deadline=None if timeout_s is None else Deadline.after(timeout_s),
            stage=self._choice([Stage.CODE, Stage.CODE, Stage.TEXT]),
            priority=self._choice([0, 1, 2]),
        )
        sequence._on_finished = self._on_finished
        return sequence

    def _on_finished(self, sequence: Sequence) -> None:
        with self._lock:
            self.ended[sequence] += 1
        self._may_open.release()

    def _on_read(self, sequence: Sequence, wanted: int) -> None:
        is_due = sequence.finish_reason is not None or sequence.num_steps >= wanted
        with self._lock:
            self.read[sequence] += is_due


@cache
def alone(prompt: int, seed: int, stage: Stage) -> Sequence:
    return run_alone(prompt, seed=seed, stage=stage, cap=CAP)


def assert_as_alone(sequence: Sequence) -> None:
    """All that it would have come to, or the beginning of it where it was ended."""
    expected = alone(int(sequence.text_ids[0]), sequence.params.seed, sequence.stage)
    steps = sequence.num_steps
    if sequence.error is None:
        assert steps == expected.num_steps
        assert sequence.finish_reason is expected.finish_reason
    assert np.array_equal(sequence.tokens_between(0, steps), expected.tokens[:steps])
    assert np.array_equal(sequence.hiddens_between(0, steps), expected.hiddens[:steps])


def test_everything_ends_once_and_as_alone_in_a_storm():
    runner = FakeModelRunner(num_slots=6, failing_calls=set(range(50, 100_000, 50)))
    engine = make_engine(runner, max_waiting=40)
    callers = [Caller(engine, number) for number in range(NUM_CALLERS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]

    engine.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=WAIT_S)
        assert not thread.is_alive()
    for caller in callers:
        caller.wait_until_all_have_ended()
    engine.stop()

    assert engine.num_running == engine.num_waiting == 0
    assert engine.num_running_requests == engine.num_waiting_requests == 0
    for caller in callers:
        assert caller.ended == Counter(caller.sequences)
        assert caller.read == Counter(caller.wanted.keys())
        for sequence in caller.sequences:
            assert_as_alone(sequence)
    assert sum(caller.num_refused for caller in callers) > 0
    sequences = [sequence for caller in callers for sequence in caller.sequences]
    assert set(Counter(sequence.finish_reason for sequence in sequences)) == set(FinishReason)
    kinds = Counter(type(sequence.error).__name__ for sequence in sequences)
    assert set(kinds) == {
        "NoneType",
        "RequestCancelledError",
        "DeadlineExceededError",
        "GenerationError",
    }
    assert kinds["NoneType"] > len(sequences) / 4
