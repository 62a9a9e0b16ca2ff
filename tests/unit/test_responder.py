"""What the responder is given is done in order, and its regular work is never put off."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from fake_pb_utils import WAIT_S

from chattts_triton.serving.responder import Responder

NEVER_S = 3600.0
OFTEN_S = 0.01


@contextmanager
def responder(on_interval: Callable[[], None], interval_s: float = NEVER_S) -> Iterator[Responder]:
    started = Responder(on_interval, interval_s)
    started.start()
    yield started
    started.close()


def nothing() -> None:
    """For those of no interest."""


def fail() -> None:
    raise RuntimeError("the caller has gone")


def test_what_it_is_given_is_run_in_order_on_its_own_thread_before_it_ends():
    done: list[tuple[int, str]] = []

    with responder(nothing) as started:
        for number in range(100):
            started.submit(
                lambda number=number: done.append((number, threading.current_thread().name))
            )

    assert done == [(number, "responder") for number in range(100)]


def test_what_fails_hinders_nothing_behind_it():
    done: list[str] = []

    with responder(nothing) as started:
        started.submit(fail)
        started.submit(lambda: done.append("next"))

    assert done == ["next"]


def test_its_regular_work_is_done_at_intervals_also_after_it_failed():
    third = threading.Event()
    called_s: list[float] = []

    def work() -> None:
        called_s.append(time.monotonic())
        if len(called_s) == 3:
            third.set()
        fail()

    with responder(work, OFTEN_S):
        assert third.wait(WAIT_S)

    assert np.diff(called_s).min() >= OFTEN_S


def test_its_regular_work_is_not_put_off_by_a_queue_that_never_ends():
    called = threading.Event()

    with responder(called.set, OFTEN_S) as started:

        def go_on() -> None:
            if not called.is_set():
                started.submit(go_on)

        for _ in range(3):
            started.submit(go_on)

        assert called.wait(WAIT_S)


def test_what_was_sent_is_let_go_of_while_there_is_nothing_to_do():
    sent, let_go = threading.Event(), threading.Event()

    with responder(nothing) as started:
        audio = np.zeros(8)
        weakref.finalize(audio, let_go.set)
        started.submit(lambda audio=audio: sent.set())
        del audio

        assert sent.wait(WAIT_S)
        gc.collect()
        assert let_go.wait(WAIT_S)
