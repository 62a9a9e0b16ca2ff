"""What the engine measures of itself."""

from __future__ import annotations

import threading

import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_until_idle

from chattts_triton.engine.sequence import Stage
from chattts_triton.engine.stats import MAX_KEPT, EngineStats


def test_every_decode_step_is_counted_with_its_batch():
    runner = FakeModelRunner()
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(steps, finished) for steps in (9, 4, 6)])

    run_until_idle(engine)
    taken = engine.stats.take()

    assert [step.batch_size for step in taken.steps] == runner.batch_sizes
    assert all(step.seconds > 0 for step in taken.steps)
    assert taken.num_steps == len(runner.batch_sizes)
    assert taken.num_sequence_steps == sum(runner.batch_sizes)
    assert taken.num_dropped_steps == 0


def test_taking_begins_anew():
    stats = EngineStats()
    stats.add_step(3, 0.5)
    stats.add_queue_time(1.5)

    first, second = stats.take(), stats.take()

    assert first.steps == ((3, 0.5),)
    assert first.queue_times_s == (1.5,)
    assert (first.num_steps, first.num_sequence_steps) == (1, 3)
    assert second.steps == second.queue_times_s == ()
    assert (second.num_steps, second.num_sequence_steps) == (0, 0)


def test_codes_and_refinements_alike_tell_how_long_they_waited():
    engine, finished = make_engine(FakeModelRunner(num_slots=1)), []
    sequences = [make_sequence(3, finished), make_sequence(3, finished, cap=2, stage=Stage.TEXT)]
    engine.add_request(sequences)

    run_until_idle(engine)

    waits_s = [sequence.first_step_s - sequence.arrival_s for sequence in sequences]
    assert engine.stats.take().queue_times_s == tuple(waits_s)
    assert 0 <= waits_s[0] < waits_s[1]


def test_a_step_that_failed_is_not_counted_but_the_one_in_its_place_is():
    runner = FakeModelRunner(max_batch_size=2)
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(9, finished) for _ in range(3)])

    run_until_idle(engine)
    taken = engine.stats.take()

    assert 3 in runner.batch_sizes
    assert taken.num_sequence_steps == sum(size for size in runner.batch_sizes if size <= 2)


def test_what_nobody_takes_is_dropped_and_counted():
    stats = EngineStats()
    for i in range(MAX_KEPT + 10):
        stats.add_step(2, i + 1.0)
    for i in range(MAX_KEPT + 4):
        stats.add_queue_time(float(i))

    taken = stats.take()

    assert len(taken.steps) == len(taken.queue_times_s) == MAX_KEPT
    assert taken.steps[0].seconds == 11.0
    assert taken.queue_times_s[-1] == MAX_KEPT + 3.0
    assert taken.num_steps == MAX_KEPT + 10
    assert taken.num_sequence_steps == 2 * (MAX_KEPT + 10)
    assert (taken.num_dropped_steps, taken.num_dropped_queue_times) == (10, 4)


def test_the_average_step_follows_about_the_last_twenty():
    stats = EngineStats()
    assert stats.step_s == 0.0

    stats.add_step(1, 0.010)
    assert stats.step_s == 0.010
    for _ in range(20):
        stats.add_step(1, 0.030)
    stats.take()

    assert stats.step_s == pytest.approx(0.030 - 0.020 * (19 / 21) ** 20)
    assert 0.026 < stats.step_s < 0.030


def test_nothing_is_lost_or_counted_twice_while_another_thread_takes():
    stats, taken = EngineStats(), []
    has_ended = threading.Event()

    def collect():
        while not has_ended.is_set():
            taken.append(stats.take())

    thread = threading.Thread(target=collect)
    thread.start()
    for i in range(20_000):
        stats.add_step(2, 0.001)
        stats.add_queue_time(float(i))
    has_ended.set()
    thread.join(timeout=10)
    taken.append(stats.take())

    assert sum(snapshot.num_steps for snapshot in taken) == 20_000
    assert sum(snapshot.num_sequence_steps for snapshot in taken) == 40_000
    kept_s = [wait_s for snapshot in taken for wait_s in snapshot.queue_times_s]
    num_dropped = sum(snapshot.num_dropped_queue_times for snapshot in taken)
    assert len(kept_s) + num_dropped == 20_000
    assert kept_s == sorted(set(kept_s))


def test_requests_are_counted_once_and_run_as_soon_as_one_sequence_does():
    engine, finished = make_engine(FakeModelRunner(num_slots=2)), []
    for request_id, num_sequences in (("a", 3), ("b", 2), ("c", 1)):
        engine.add_request(
            [make_sequence(9, finished, request_id=request_id) for _ in range(num_sequences)]
        )

    counts = [(engine.num_running_requests, engine.num_waiting_requests)]
    for _ in range(2):
        engine.step()
        counts.append((engine.num_running_requests, engine.num_waiting_requests))
    run_until_idle(engine)
    counts.append((engine.num_running_requests, engine.num_waiting_requests))

    assert counts == [(0, 3), (1, 2), (1, 2), (0, 0)]
