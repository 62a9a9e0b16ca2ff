"""The loop over a fake model: who runs, who ends and why, and that nobody is forgotten."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref

import numpy as np
import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_alone, run_until_idle

from chattts_triton.engine.sequence import FinishReason, Stage
from chattts_triton.errors import (
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
)


def test_a_sequence_stops_at_its_end_code_and_gives_the_slot_back():
    engine, finished = make_engine(), []

    engine.add_request([make_sequence(5, finished)])
    run_until_idle(engine)

    (sequence,) = finished
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.tokens.shape == (5, 4)
    assert sequence.hiddens.shape == (5, 8)
    assert engine.num_running == 0


def test_a_runaway_sequence_ends_at_its_cap_and_says_so():
    engine, finished = make_engine(), []

    engine.add_request([make_sequence(FakeModelRunner.NEVER, finished, cap=7)])
    run_until_idle(engine)

    assert finished[0].finish_reason is FinishReason.LENGTH
    assert finished[0].num_steps == 7


def test_the_end_code_cannot_come_before_the_first_step():
    """B-37: forced to end at once, a sequence still has a step, and nothing is tried again."""
    engine, finished = make_engine(), []

    engine.add_request([make_sequence(0, finished)])
    run_until_idle(engine, max_steps=3)

    assert finished[0].finish_reason is FinishReason.STOP
    assert finished[0].num_steps == 1


def test_short_sequences_overtake_long_ones_that_came_first():
    engine, finished = make_engine(), []

    engine.add_request([make_sequence(30, finished)])
    engine.add_request([make_sequence(3, finished)])
    run_until_idle(engine)

    assert [sequence.num_steps for sequence in finished] == [3, 30]


def test_results_do_not_depend_on_neighbours_or_arrival_order():
    """Also B-33: each sequence owns its generator."""
    jobs = [(3, 1), (9, 2), (20, 3), (5, 4), (14, 5), (7, 6), (11, 7)]
    alone = {job: run_alone(job[0], seed=job[1]).tokens for job in jobs}

    for trial in range(10):
        order = random.Random(trial)
        shuffled = order.sample(jobs, len(jobs))
        runner = FakeModelRunner()
        engine, finished = make_engine(runner), []
        for num_steps, seed in shuffled:
            engine.add_request([make_sequence(num_steps, finished, seed=seed)])
            for _ in range(order.randrange(4)):
                engine.step()
        run_until_idle(engine)

        assert max(runner.batch_sizes) > 1
        assert len(finished) == len(jobs)
        for sequence in finished:
            key = (int(sequence.text_ids[0]), sequence.params.seed)
            assert np.array_equal(sequence.tokens, alone[key])
            assert (sequence.hiddens == sequence.text_ids[0]).all()


def test_a_full_queue_refuses_at_once_and_takes_nothing_of_a_call_that_does_not_fit():
    engine, finished = make_engine(max_waiting=2), []
    engine.add_request([make_sequence(9, finished) for _ in range(5)])

    with pytest.raises(OverloadedError, match="waiting queue is full"):
        engine.add_request([make_sequence(9, finished) for _ in range(2)])

    assert engine.num_waiting == 5
    engine.add_request([make_sequence(9, finished)])
    run_until_idle(engine)
    assert len(finished) == 6


def test_a_prompt_that_does_not_fit_its_slot_is_refused():
    engine = make_engine()
    sequence = make_sequence(3, [], cap=2048)
    sequence.text_ids = np.zeros(1025, dtype=np.int32)

    with pytest.raises(
        InvalidRequestError, match="TEXT_IDS: got 1025, wanted a prompt of 1 to 1024 tokens"
    ):
        engine.add_request([sequence])


def test_more_sequences_than_could_ever_fit_are_the_callers_mistake():
    engine = make_engine(max_waiting=2)

    with pytest.raises(InvalidRequestError, match="TEXT: got 7, wanted at most 6 segments"):
        engine.add_request([make_sequence(1, []) for _ in range(7)])


def test_a_finished_sequence_lets_go_of_its_owner():
    """Otherwise request and arrays would keep each other until the garbage collector came by."""

    class Owner:
        def __init__(self):
            self.sequence = make_sequence(1, [])
            self.sequence._on_finished = self.take

        def take(self, sequence):
            assert sequence is self.sequence

    owner = Owner()
    sequence, watched = owner.sequence, weakref.ref(owner)
    gc.disable()
    try:
        sequence.finish(FinishReason.STOP)
        del owner
        assert watched() is None
    finally:
        gc.enable()


def test_stopping_ends_every_sequence_and_refuses_new_ones():
    engine, finished = make_engine(FakeModelRunner(num_slots=1)), []
    engine.add_request([make_sequence(FakeModelRunner.NEVER, finished, cap=2048)])
    engine.add_request([make_sequence(3, finished)])
    engine.start()

    engine.stop()

    assert len(finished) == 2
    assert all(isinstance(sequence.error, RequestCancelledError) for sequence in finished)
    with pytest.raises(OverloadedError, match="stopping"):
        engine.add_request([make_sequence(3, finished)])


def test_an_idle_engine_waits_for_company_as_long_as_it_is_told():
    runner = FakeModelRunner()
    engine, done = make_engine(runner, max_queue_delay_us=100_000), threading.Semaphore(0)
    sequences = [make_sequence(5, []) for _ in range(2)]
    for sequence in sequences:
        sequence._on_finished = lambda _: done.release()

    engine.start()
    began_s = time.monotonic()
    engine.add_request(sequences[:1])
    engine.add_request(sequences[1:])
    assert done.acquire(timeout=10)
    assert done.acquire(timeout=10)
    engine.stop()

    assert all(s.first_step_s - began_s >= 0.1 for s in sequences)


def test_an_engine_with_waiting_sequences_does_not_wait_for_company():
    """Two sequences for one slot: only the first, who finds the engine idle, pays the delay."""
    engine = make_engine(FakeModelRunner(num_slots=1), max_queue_delay_us=5_000_000)
    done, finished = threading.Semaphore(0), []
    sequences = [make_sequence(3, finished) for _ in range(2)]
    for sequence in sequences:
        sequence._on_finished = lambda _: done.release()
    engine.add_request(sequences)

    engine.start()

    assert done.acquire(timeout=4)
    assert done.acquire(timeout=4)
    engine.stop()


def test_text_and_codes_are_generated_side_by_side_each_as_alone():
    alone = run_alone(9, seed=3)
    runner = FakeModelRunner()
    engine, finished = make_engine(runner), []
    engine.add_request(
        [
            make_sequence(7, finished, cap=5, stage=Stage.TEXT),
            make_sequence(9, finished, seed=3),
            make_sequence(11, finished, cap=12, stage=Stage.TEXT),
        ]
    )
    run_until_idle(engine)

    by_prompt = {int(sequence.text_ids[0]): sequence for sequence in finished}
    assert max(runner.batch_sizes) == 3
    assert by_prompt[7].tokens.tolist() == [[7]] * 5
    assert by_prompt[11].tokens.tolist() == [[11]] * 12
    assert np.array_equal(by_prompt[9].tokens, alone.tokens)
