"""Slots and queue, in plain Python."""

from __future__ import annotations

import pytest
from fakes import make_sequence

from chattts_triton.engine.scheduler import Scheduler
from chattts_triton.errors import OverloadedError


def prefill_all(scheduler: Scheduler) -> None:
    """Give slots to all that fit, each with its whole prompt in it."""
    while sequence := scheduler.schedule():
        sequence.num_prefilled = sequence.num_prompt_tokens


def test_one_sequence_is_admitted_at_a_time_in_the_order_of_arrival():
    scheduler = Scheduler(max_num_seqs=2, max_waiting=8)
    sequences = [make_sequence(i, []) for i in range(3)]
    scheduler.add(sequences)

    admitted = []
    for _ in range(3):
        admitted.append(scheduler.schedule())
        sequences[len(admitted) - 1].num_prefilled = 1

    assert admitted == [sequences[0], sequences[1], None]
    assert list(scheduler.waiting) == [sequences[2]]


def test_the_last_sequence_fills_a_freed_slot():
    scheduler = Scheduler(max_num_seqs=3, max_waiting=8)
    a, b, c = (make_sequence(i, []) for i in range(3))
    scheduler.add([a, b, c])
    prefill_all(scheduler)

    assert scheduler.remove(0) == [(2, 0)]
    assert scheduler.running == [c, b]
    assert scheduler.remove(1) == []
    assert scheduler.running == [c]


def test_a_prompt_that_has_begun_goes_on_before_the_next_one_begins():
    scheduler = Scheduler(max_num_seqs=3, max_waiting=8)
    sequences = [make_sequence(i, [], prompt_length=30) for i in range(2)]
    scheduler.add(sequences)

    assert scheduler.schedule() is sequences[0]
    sequences[0].num_prefilled = 16
    assert scheduler.schedule() is sequences[0]
    sequences[0].num_prefilled = 30
    assert scheduler.schedule() is sequences[1]


@pytest.mark.parametrize(
    ("slot", "moves", "running"),
    [
        (0, [(2, 0), (3, 2)], "cbp"),
        (1, [(2, 1), (3, 2)], "acp"),
        (2, [(3, 2)], "abp"),
        (3, [], "abc"),
    ],
)
def test_a_sequence_in_prefill_stays_behind_those_that_decode(slot, moves, running):
    scheduler = Scheduler(max_num_seqs=4, max_waiting=8)
    named = {name: make_sequence(1, [], prompt_length=30) for name in "abcp"}
    scheduler.add(list(named.values()))
    prefill_all(scheduler)
    named["p"].num_prefilled = 16

    assert scheduler.remove(slot) == moves
    assert scheduler.running == [named[name] for name in running]


def test_free_slots_count_as_room():
    scheduler = Scheduler(max_num_seqs=2, max_waiting=1)
    scheduler.add([make_sequence(1, []) for _ in range(3)])

    with pytest.raises(OverloadedError, match="0 running, 3 waiting, 1 more do not fit"):
        scheduler.add([make_sequence(1, [])])


def test_with_no_queue_at_all_only_free_slots_take_sequences():
    scheduler = Scheduler(max_num_seqs=1, max_waiting=0)
    scheduler.add([make_sequence(1, [])])
    prefill_all(scheduler)

    with pytest.raises(OverloadedError):
        scheduler.add([make_sequence(1, [])])
