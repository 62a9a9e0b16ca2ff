"""Slots and queue, in plain Python."""

from __future__ import annotations

import pytest
from fakes import make_sequence

from chattts_triton.engine.scheduler import Scheduler
from chattts_triton.errors import OverloadedError


def test_one_sequence_is_admitted_at_a_time_in_the_order_of_arrival():
    scheduler = Scheduler(max_num_seqs=2, max_waiting=8)
    sequences = [make_sequence(i, []) for i in range(3)]
    scheduler.add(sequences)

    admitted = [scheduler.schedule() for _ in range(3)]

    assert admitted == [sequences[0], sequences[1], None]
    assert list(scheduler.waiting) == [sequences[2]]


def test_the_last_sequence_fills_a_freed_slot():
    scheduler = Scheduler(max_num_seqs=3, max_waiting=8)
    a, b, c = (make_sequence(i, []) for i in range(3))
    scheduler.add([a, b, c])
    for _ in range(3):
        scheduler.schedule()

    assert scheduler.remove(0) == 2
    assert scheduler.running == [c, b]
    assert scheduler.remove(1) is None
    assert scheduler.running == [c]


def test_free_slots_count_as_room():
    scheduler = Scheduler(max_num_seqs=2, max_waiting=1)
    scheduler.add([make_sequence(1, []) for _ in range(3)])

    with pytest.raises(OverloadedError, match="0 running, 3 waiting, 1 more do not fit"):
        scheduler.add([make_sequence(1, [])])


def test_with_no_queue_at_all_only_free_slots_take_sequences():
    scheduler = Scheduler(max_num_seqs=1, max_waiting=0)
    scheduler.add([make_sequence(1, [])])
    scheduler.schedule()

    with pytest.raises(OverloadedError):
        scheduler.add([make_sequence(1, [])])
