"""Reading a sequence while it is generated, from another thread."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_alone, run_until_idle

from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.errors import RequestCancelledError


def append_step(sequence: Sequence) -> None:
    number = sequence.num_steps
    sequence.append(np.full(4, number, dtype=np.int64), np.full(8, number, dtype=np.float32))


def test_a_reader_is_called_once_when_there_are_so_many_steps():
    sequence, calls = make_sequence(9, []), []
    sequence.notify_at(3, lambda: calls.append(sequence.num_steps))

    for _ in range(5):
        append_step(sequence)
    sequence.finish(FinishReason.STOP)

    assert calls == [3]


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_reader_is_called_at_once_when_there_are_enough_steps(num_steps):
    sequence, calls = make_sequence(9, []), []
    append_step(sequence)
    append_step(sequence)

    sequence.notify_at(num_steps, lambda: calls.append(threading.current_thread()))

    assert calls == [threading.current_thread()]


def test_a_reader_is_called_at_the_end_though_there_are_fewer_steps():
    sequence, calls = make_sequence(9, []), []
    append_step(sequence)
    sequence.notify_at(5, lambda: calls.append("waited"))

    sequence.finish(FinishReason.ABORT, RequestCancelledError("gone"))
    sequence.notify_at(5, lambda: calls.append("came late"))

    assert calls == ["waited", "came late"]


def test_a_new_reader_takes_the_place_of_the_one_before():
    sequence, calls = make_sequence(9, []), []
    sequence.notify_at(1, lambda: calls.append("first"))
    sequence.notify_at(2, lambda: calls.append("second"))

    append_step(sequence)
    append_step(sequence)

    assert calls == ["second"]


def test_the_owner_knows_of_the_end_before_the_reader_does():
    order = []
    sequence = make_sequence(9, [])
    sequence._on_finished = lambda _: order.append("owner")
    sequence.notify_at(5, lambda: order.append("reader"))

    sequence.finish(FinishReason.STOP)

    assert order == ["owner", "reader"]


def test_the_owner_comes_first_also_where_a_reader_comes_in_that_very_moment():
    order = []
    sequence = make_sequence(9, [])

    def on_finished(_):
        read = (5, lambda: order.append("reader"))
        thread = threading.Thread(target=sequence.notify_at, args=read)
        thread.start()
        thread.join(timeout=10)
        order.append("owner")

    sequence._on_finished = on_finished
    sequence.finish(FinishReason.STOP)

    assert order == ["owner", "reader"]


def test_a_reader_may_ask_for_more_from_within_its_call():
    sequence, seen = make_sequence(9, []), []

    def read():
        seen.append(sequence.num_steps)
        if sequence.finish_reason is None:
            sequence.notify_at(sequence.num_steps + 2, read)

    sequence.notify_at(2, read)
    for _ in range(5):
        append_step(sequence)
    sequence.finish(FinishReason.STOP)

    assert seen == [2, 4, 5]


def test_parts_of_a_sequence_are_slices_of_the_steps_there_are():
    sequence = make_sequence(9, [])
    for _ in range(5):
        append_step(sequence)

    assert sequence.tokens_between(1, 3).tolist() == [[1] * 4, [2] * 4]
    assert np.array_equal(sequence.hiddens_between(1, 3), sequence.hiddens[1:3])
    assert np.array_equal(sequence.hiddens_between(3, 99), sequence.hiddens[3:])
    assert sequence.hiddens_between(0, 5).dtype == np.float32
    assert sequence.tokens_between(0, 5).dtype == np.int64


@pytest.mark.parametrize(("stage", "width"), [(Stage.CODE, 4), (Stage.TEXT, 1)])
def test_a_part_without_steps_is_empty_and_has_the_usual_width(stage, width):
    sequence = make_sequence(9, [], stage=stage)

    assert sequence.tokens_between(0, 5).shape == (0, width)
    assert sequence.hiddens_between(2, 2).shape == (0, 8)
    assert sequence.hiddens_between(0, 5).dtype == np.float32
    assert sequence.tokens_between(0, 5).dtype == np.int64


def test_every_reader_is_called_once_however_the_threads_meet():
    order = random.Random(1)
    for _ in range(300):
        sequence = make_sequence(99, [])
        are_ready, was_called = threading.Barrier(2), threading.Semaphore(0)
        wanted = order.randrange(0, 4)

        def generate(sequence=sequence, are_ready=are_ready):
            are_ready.wait(timeout=10)
            for _ in range(2):
                append_step(sequence)
            sequence.finish(FinishReason.STOP)

        thread = threading.Thread(target=generate)
        thread.start()
        are_ready.wait(timeout=10)
        sequence.notify_at(wanted, was_called.release)

        assert was_called.acquire(timeout=10)
        thread.join(timeout=10)
        assert not was_called.acquire(blocking=False)


def read_all(
    sequence: Sequence, stride: int, have_read: threading.Semaphore
) -> tuple[np.ndarray, np.ndarray]:
    """Read a sequence as a stream does, from this thread, until it has ended."""
    hiddens, tokens, cursor = [], [], 0
    is_due, has_ended = threading.Event(), False
    while not has_ended:
        is_due.clear()
        sequence.notify_at(cursor + stride, is_due.set)
        assert is_due.wait(timeout=10)
        has_ended = sequence.finish_reason is not None  # first, or steps could be missed
        stop = sequence.num_steps
        hiddens.append(sequence.hiddens_between(cursor, stop))
        tokens.append(sequence.tokens_between(cursor, stop))
        assert len(hiddens[-1]) == len(tokens[-1]) == stop - cursor
        cursor = stop
        have_read.release()
    assert len(hiddens) > 1
    return np.concatenate(hiddens), np.concatenate(tokens)


def test_what_is_read_on_the_way_is_what_there_is_at_the_end():
    runner = FakeModelRunner()
    engine = make_engine(runner)
    strides = {make_sequence(n, [], seed=n): stride for n, stride in ((40, 1), (33, 3), (21, 12))}
    have_read = {sequence: threading.Semaphore(0) for sequence in strides}
    read = {}

    def wait_for_readers():
        """In the midst of all three sequences, so that each is read in parts."""
        if len(runner.batch_sizes) == 18:
            assert all(semaphore.acquire(timeout=10) for semaphore in have_read.values())

    def read_one(sequence):
        read[sequence] = read_all(sequence, strides[sequence], have_read[sequence])

    runner.on_decode = wait_for_readers
    threads = [threading.Thread(target=read_one, args=(sequence,)) for sequence in strides]
    for thread in threads:
        thread.start()
    engine.add_request(list(strides))
    engine.start()
    for thread in threads:
        thread.join(timeout=20)
    engine.stop()

    for sequence in strides:
        alone = run_alone(int(sequence.text_ids[0]), seed=sequence.params.seed)
        hiddens, tokens = read[sequence]
        assert np.array_equal(hiddens, alone.hiddens)
        assert np.array_equal(tokens, alone.tokens)


def test_the_engine_calls_a_reader_within_the_step_that_makes_enough():
    engine, finished, seen = make_engine(), [], []
    sequence = make_sequence(20, finished)
    sequence.notify_at(6, lambda: seen.append(sequence.num_steps))
    engine.add_request([sequence])

    run_until_idle(engine)

    assert seen == [6]
