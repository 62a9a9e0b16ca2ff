"""Who is served first: a priority is a head start of some places, and nobody starves."""

from __future__ import annotations

from itertools import count

import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_until_idle
from hypothesis import given, settings
from hypothesis import strategies as st

from chattts_triton.engine.scheduler import PRIORITY_STEP, Scheduler
from chattts_triton.engine.sequence import Sequence


def serve_all(scheduler: Scheduler) -> list[Sequence]:
    served = []
    while sequence := scheduler.schedule():
        served.append(sequence)
        scheduler.remove(0)
    return served


def make_scheduler() -> Scheduler:
    return Scheduler(max_num_seqs=1, max_waiting=1000)


def test_a_lower_number_is_served_earlier():
    scheduler = make_scheduler()
    sequences = {priority: make_sequence(1, [], priority=priority) for priority in (2, 0, 1)}
    for sequence in sequences.values():
        scheduler.add([sequence])

    assert serve_all(scheduler) == [sequences[0], sequences[1], sequences[2]]


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_equals_are_served_as_they_come_and_a_requests_sequences_in_their_order(priority):
    scheduler = make_scheduler()
    sequences = [make_sequence(1, [], priority=priority) for _ in range(60)]
    for i in range(0, 60, 3):
        scheduler.add(sequences[i : i + 3])

    assert serve_all(scheduler) == sequences


def test_a_priority_is_worth_so_many_places_and_no_more():
    scheduler = make_scheduler()
    late = make_sequence(1, [], priority=1)
    scheduler.add([late])
    first_class = [make_sequence(1, [], priority=0) for _ in range(40)]
    scheduler.add(first_class)

    assert serve_all(scheduler).index(late) == PRIORITY_STEP - 1


def test_the_last_class_is_served_under_an_endless_flow_of_the_first():
    scheduler = make_scheduler()
    last = make_sequence(1, [], priority=2)
    scheduler.add([make_sequence(1, [], priority=0) for _ in range(5)])
    scheduler.add([last])

    for num_served in count():
        scheduler.add([make_sequence(1, [], priority=0)])
        if serve_one(scheduler) is last:
            break
        assert num_served < 5 + 2 * PRIORITY_STEP


def serve_one(scheduler: Scheduler) -> Sequence | None:
    served = scheduler.schedule()
    scheduler.remove(0)
    return served


class PlainQueue:
    """The rule word by word: who is served is looked for among all, at every turn."""

    def __init__(self):
        self.waiting = []  # (is continued, ticket, sequence)
        self.num_arrived = 0

    def add(self, sequence: Sequence, *, is_continued: bool) -> None:
        self.num_arrived += 1
        self.waiting.append((is_continued, self.num_arrived, sequence))

    def serve(self) -> Sequence | None:
        if not self.waiting:
            return None
        continued = [entry for entry in self.waiting if entry[0]]
        entry = continued[0] if continued else self.waiting[0]
        for other in [] if continued else self.waiting:
            if self._place(other) < self._place(entry):
                entry = other
        self.waiting.remove(entry)
        return entry[2]

    def drop(self, sequence: Sequence) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] is not sequence]

    def _place(self, entry) -> int:
        _, ticket, sequence = entry
        return ticket + 16 * sequence.priority


EVENTS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 2), min_size=1, max_size=30)),
    st.tuples(st.just("continue"), st.integers(0, 2)),
    st.tuples(st.just("serve"), st.integers(1, 8)),
    st.tuples(st.just("drop"), st.integers(0, 1000)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_the_queue_serves_as_a_plain_one_does(events):
    scheduler, plain = Scheduler(max_num_seqs=1, max_waiting=2000), PlainQueue()
    for kind, value in events:
        if kind == "add":
            sequences = [make_sequence(1, [], priority=priority) for priority in value]
            scheduler.add(sequences)
            for sequence in sequences:
                plain.add(sequence, is_continued=False)
        elif kind == "continue":
            sequence = make_sequence(1, [], priority=value)
            scheduler.add_first(sequence)
            plain.add(sequence, is_continued=True)
        elif kind == "drop" and scheduler.waiting:
            sequence = scheduler.waiting[value % len(scheduler.waiting)]
            scheduler.drop({sequence})
            plain.drop(sequence)
        elif kind == "serve":
            for _ in range(value):
                served = scheduler.schedule()
                assert served is plain.serve()
                if served:
                    scheduler.remove(0)

    assert serve_all(scheduler) == [plain.serve() for _ in range(len(plain.waiting))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=150))
def test_only_a_lower_number_overtakes_and_only_so_often(arrivals):
    scheduler, served = Scheduler(max_num_seqs=1, max_waiting=2000), []
    sequences = [make_sequence(1, [], priority=priority) for priority, _ in arrivals]
    for sequence, (_, is_served) in zip(sequences, arrivals, strict=True):
        scheduler.add([sequence])
        if is_served:
            served.append(serve_one(scheduler))
    served += serve_all(scheduler)

    turn = {sequence: i for i, sequence in enumerate(served)}
    for i, sequence in enumerate(sequences):
        overtakers = [late for late in sequences[i + 1 :] if turn[late] < turn[sequence]]
        assert all(late.priority < sequence.priority for late in overtakers)
        assert len(overtakers) <= 16 * sequence.priority


def test_a_priority_decides_who_gets_the_next_slot():
    engine, finished = make_engine(FakeModelRunner(num_slots=1)), []
    for request_id, priority in (("a", 1), ("b", 2), ("c", 1), ("d", 0)):
        sequence = make_sequence(2, finished, request_id=request_id, priority=priority)
        engine.add_request([sequence])

    run_until_idle(engine)

    assert [sequence.request_id for sequence in finished] == ["d", "a", "c", "b"]
