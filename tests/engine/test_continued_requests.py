"""What follows in a request that was accepted: before the queue, from any thread, never lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_alone, run_until_idle

from chattts_triton.errors import InvalidRequestError, OverloadedError, RequestCancelledError


def test_what_follows_but_does_not_fit_into_its_slot_ends_with_an_error():
    engine, finished = make_engine(), []
    too_long = make_sequence(3, finished, cap=2048)
    too_long.text_ids = np.zeros(1025, dtype=np.int32)

    engine.continue_request(too_long)

    assert finished == [too_long]
    assert isinstance(too_long.error, InvalidRequestError)
    assert engine.num_waiting == 0


def test_what_follows_from_a_sequence_goes_before_the_queue_even_when_it_is_full():
    engine, finished = make_engine(FakeModelRunner(num_slots=1), max_waiting=1), []

    def continue_it(sequence):
        finished.append(sequence)
        engine.continue_request(make_sequence(4, finished, request_id="second half", priority=2))

    first = make_sequence(3, finished)
    first._on_finished = continue_it
    engine.add_request([first])
    engine.step()
    engine.add_request([make_sequence(5, finished, request_id="another", priority=0)])
    run_until_idle(engine)

    assert [sequence.request_id for sequence in finished] == ["r", "second half", "another"]


def test_another_thread_may_continue_a_request_past_a_full_queue_and_wakes_the_engine():
    engine, ended = make_engine(FakeModelRunner(num_slots=1), max_waiting=0), []
    done = threading.Semaphore(0)

    def on_finished(sequence):
        ended.append(sequence)
        done.release()

    sequences = [make_sequence(steps, [], request_id="stream") for steps in (4, 7, 5)]
    for sequence in sequences:
        sequence._on_finished = on_finished

    engine.start()
    for sequence in sequences[:2]:
        engine.continue_request(sequence)
        assert done.acquire(timeout=10)
    endless = make_sequence(FakeModelRunner.NEVER, [], cap=2048)
    engine.add_request([endless])
    with pytest.raises(OverloadedError):
        engine.add_request([make_sequence(1, [])])
    engine.continue_request(sequences[2])
    engine.abort("r")
    assert done.acquire(timeout=10)
    engine.stop()

    assert ended == sequences
    for sequence in sequences:
        alone = run_alone(int(sequence.text_ids[0]))
        assert np.array_equal(sequence.tokens, alone.tokens)


def test_what_is_continued_while_the_engine_stops_ends_at_once_from_whatever_thread():
    engine, finished = make_engine(), []

    def continue_it(sequence):
        """On the engine's thread, at the end of the loop."""
        engine.continue_request(make_sequence(3, finished, request_id="same thread"))
        other = make_sequence(3, finished, request_id="other thread")
        thread = threading.Thread(target=engine.continue_request, args=(other,))
        thread.start()
        thread.join(timeout=10)

    first = make_sequence(FakeModelRunner.NEVER, [], cap=2048)
    first._on_finished = continue_it
    engine.add_request([first])
    engine.start()

    engine.stop()

    assert [sequence.request_id for sequence in finished] == ["same thread", "other thread"]
    assert all(isinstance(sequence.error, RequestCancelledError) for sequence in finished)
    assert [str(sequence.error) for sequence in finished] == ["the server is stopping"] * 2
    engine.continue_request(make_sequence(3, finished, request_id="later"))
    assert finished[2].request_id == "later"
    assert engine.num_waiting == 0


def test_nothing_hangs_that_is_continued_from_many_threads_while_the_engine_stops():
    for _ in range(20):
        engine, finished, continued = make_engine(), [], []
        are_ready = threading.Barrier(5)

        def continue_many(engine=engine, finished=finished, continued=continued, go=are_ready):
            go.wait(timeout=10)
            for _ in range(50):
                sequence = make_sequence(1, finished)
                continued.append(sequence)
                engine.continue_request(sequence)

        threads = [threading.Thread(target=continue_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        engine.start()
        are_ready.wait(timeout=10)
        engine.stop()
        for thread in threads:
            thread.join(timeout=10)

        assert len(finished) == len(set(finished)) == 200
        assert set(finished) == set(continued)
        assert engine.num_running == engine.num_waiting == 0
