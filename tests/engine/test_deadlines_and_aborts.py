"""A sequence that is cancelled or too late ends within a step, wherever it stands."""

from __future__ import annotations

import threading
import time

import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_until_idle

from chattts_triton.engine.sequence import Deadline, FinishReason
from chattts_triton.errors import DeadlineExceededError, RequestCancelledError


def test_abort_frees_the_slot_and_drops_a_waiting_one_before_the_next_step():
    runner = FakeModelRunner(num_slots=2)
    engine, finished = make_engine(runner), []
    add = engine.add_request
    add([make_sequence(FakeModelRunner.NEVER, finished, request_id="a") for _ in range(2)])
    for _ in range(2):
        engine.step()
    add([make_sequence(4, finished, request_id="b")])
    add([make_sequence(5, finished, request_id="c")])
    num_calls = len(runner.batch_sizes)

    engine.abort("a")
    engine.abort("b")
    engine.step()

    assert [sequence.request_id for sequence in finished] == ["b", "a", "a"]
    assert [type(sequence.error) for sequence in finished] == [RequestCancelledError] * 3
    assert runner.batch_sizes[num_calls:] == [1]  # "c" alone, in the step after the abort
    assert engine.num_running == 1


def test_a_deadline_ends_waiting_and_running_sequences_within_a_step():
    """All slots are busy meanwhile."""
    engine, finished = make_engine(FakeModelRunner(num_slots=1)), []
    deadline = Deadline.after(60)
    running = make_sequence(FakeModelRunner.NEVER, finished, deadline=deadline)
    waiting = make_sequence(3, finished, deadline=deadline)
    engine.add_request([running, waiting])
    engine.step()
    steps = running.num_steps

    running.deadline = waiting.deadline = Deadline(60, time.monotonic())
    engine.step()

    assert engine.num_running == engine.num_waiting == 0
    assert all(isinstance(sequence.error, DeadlineExceededError) for sequence in finished)
    assert str(running.error) == f"deadline of 60000 ms exceeded after {steps} steps"
    assert str(waiting.error) == "deadline of 60000 ms exceeded after 0 steps"


def test_a_deadline_ends_one_that_waits_while_all_slots_go_on():
    runner = FakeModelRunner(num_slots=1)
    engine, finished = make_engine(runner), []
    running = make_sequence(FakeModelRunner.NEVER, finished)
    waiting = make_sequence(3, finished, deadline=Deadline(60, time.monotonic()))
    engine.add_request([running])
    engine.step()
    engine.add_request([waiting])
    steps = running.num_steps

    engine.step()

    assert finished == [waiting]
    assert running.num_steps == steps + 1


def test_what_is_too_late_when_it_comes_never_gets_a_slot():
    runner, done = FakeModelRunner(), threading.Event()
    engine = make_engine(runner)
    late = make_sequence(3, [], deadline=Deadline.after(-1))
    late.notify_at(1, done.set)

    engine.start()
    engine.add_request([late])
    assert done.wait(timeout=10)
    engine.stop()

    assert isinstance(late.error, DeadlineExceededError)
    assert late.first_step_s is None
    assert runner.batch_sizes == []


@pytest.mark.parametrize("ending", ["deadline", "abort"])
def test_waiting_for_company_holds_neither_a_deadline_nor_an_abort_up(ending):
    engine, done = make_engine(max_queue_delay_us=10_000_000), threading.Event()
    sequence = make_sequence(3, [])
    sequence.notify_at(1, done.set)
    if ending == "deadline":
        sequence.deadline = Deadline.after(0.05)

    engine.start()
    engine.add_request([sequence])
    if ending == "abort":
        engine.abort("r")

    assert done.wait(timeout=5)
    assert type(sequence.error) is (
        DeadlineExceededError if ending == "deadline" else RequestCancelledError
    )
    engine.stop()


def test_a_deadline_counts_as_well_for_those_who_came_as_company():
    engine, done = make_engine(max_queue_delay_us=10_000_000), threading.Event()
    first, second = make_sequence(3, []), make_sequence(3, [], deadline=Deadline.after(0.05))
    second.notify_at(1, done.set)

    engine.start()
    engine.add_request([first])
    engine.add_request([second])

    assert done.wait(timeout=5)
    assert isinstance(second.error, DeadlineExceededError)
    engine.stop()


def test_an_abort_of_a_request_that_is_not_there_is_forgotten_at_once():
    engine, finished = make_engine(), []
    for i in range(1000):
        engine.abort(f"ghost {i}")

    engine.add_request([make_sequence(3, finished, request_id=f"ghost {i}") for i in range(3)])
    run_until_idle(engine)

    assert [sequence.finish_reason for sequence in finished] == [FinishReason.STOP] * 3


def test_aborts_that_a_step_leaves_over_do_not_outlive_it():
    """Its last sequence was there when its request was aborted, and ends in the same step."""
    runner = FakeModelRunner()
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(1, finished, request_id="a")])
    runner.on_decode = lambda: engine.abort("a")
    run_until_idle(engine)
    runner.on_decode = lambda: None

    engine.add_request([make_sequence(2, finished, request_id="a")])
    run_until_idle(engine)

    assert [sequence.finish_reason for sequence in finished] == [FinishReason.STOP] * 2


def test_an_abort_within_a_step_also_ends_what_follows_from_a_sequence_that_just_ended():
    """Then the request is neither in a slot nor in the queue for a moment."""
    engine, finished = make_engine(), []

    def continue_it(_):
        thread = threading.Thread(target=engine.abort, args=("r",))
        thread.start()
        thread.join(timeout=10)
        engine.continue_request(make_sequence(FakeModelRunner.NEVER, finished))

    first = make_sequence(2, [])
    first._on_finished = continue_it
    engine.add_request([first])

    run_until_idle(engine)

    assert first.finish_reason is FinishReason.STOP
    assert isinstance(finished[0].error, RequestCancelledError)
    assert finished[0].num_steps == 0
