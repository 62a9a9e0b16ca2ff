"""Jobs of a lane take turns, and what one of them does hinders no other."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
from fake_pb_utils import WAIT_S

from chattts_triton.serving.lane import Lane


def test_jobs_take_turns_in_the_order_of_their_arrival_on_the_lane_s_thread():
    done: list[tuple[str, int, str]] = []
    may_begin = threading.Event()

    def gate() -> Iterator[None]:
        may_begin.wait(WAIT_S)
        yield

    def job(name: str, num_turns: int) -> Iterator[None]:
        for turn in range(num_turns):
            done.append((name, turn, threading.current_thread().name))
            yield

    lane = Lane("texts")
    for each in (gate(), job("long", 3), job("short", 1), job("other", 2)):
        lane.submit(each)
    may_begin.set()
    lane.close()

    order = [("long", 0), ("short", 0), ("other", 0), ("long", 1), ("other", 1), ("long", 2)]
    assert done == [(*turn, "texts") for turn in order]


def test_a_job_that_fails_hinders_nothing_beside_it():
    done: list[int] = []

    def failing() -> Iterator[None]:
        yield
        raise RuntimeError("the caller has gone")

    def lasting() -> Iterator[None]:
        for turn in range(4):
            done.append(turn)
            yield

    lane = Lane("texts")
    lane.submit(failing())
    lane.submit(lasting())
    lane.close()

    assert done == [0, 1, 2, 3]


def test_what_a_job_held_is_let_go_of_while_there_is_nothing_to_do():
    ended, let_go = threading.Event(), threading.Event()

    def job(audio: np.ndarray) -> Iterator[None]:
        weakref.finalize(audio, let_go.set)
        yield
        ended.set()

    lane = Lane("texts")
    lane.submit(job(np.zeros(8)))
    assert ended.wait(WAIT_S)
    gc.collect()

    assert let_go.wait(WAIT_S)
    lane.close()
