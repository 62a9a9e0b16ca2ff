"""A full server and a deadline: refused at once, ended in time, and the slot free again."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from triton_calls import RunningServer

LONG = {"SEED": 0, "MAX_NEW_TOKENS": 300}
DEADLINE_MS = 150


def test_a_full_server_refuses_at_once_and_the_running_request_is_unharmed(
    one_slot_server: RunningServer,
):
    expected = one_slot_server.speak_one("你好", **LONG)

    with ThreadPoolExecutor(1) as pool:
        num_taken = num_taken_over(one_slot_server)
        running = pool.submit(one_slot_server.speak_one, "你好", **LONG)
        wait_until_taken_over(one_slot_server, num_taken + 1)
        start_s = time.monotonic()
        refusal = one_slot_server.refused("再见", SEED=1)
        elapsed_s = time.monotonic() - start_s
        assert not running.done()

    assert refusal.status == "UNAVAILABLE"
    assert re.fullmatch(
        r"in ensemble 'chattts', gpt: waiting queue is full: (1 running, 0|0 running, 1) waiting, "
        r"1 more do not fit \(max_num_seqs 1, max_waiting 0\)",
        refusal.text,
    )
    assert elapsed_s < 0.5
    assert running.result() == expected
    one_slot_server.assert_alive()


def test_a_call_of_more_rows_than_ever_fit_is_refused_whole(one_slot_server: RunningServer):
    refusal = one_slot_server.refused(["你好", "再见"])

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text == (
        "in ensemble 'chattts', gpt: TEXT: got 2, wanted at most 1 segments in one call"
    )
    one_slot_server.assert_alive()


def test_a_request_ends_at_its_deadline_and_its_slot_is_free(one_slot_server: RunningServer):
    expected = one_slot_server.speak_one("再见", SEED=1, MAX_NEW_TOKENS=2)

    refusal = one_slot_server.refused("你好", **LONG, timeout_us=DEADLINE_MS * 1000)

    # There is no queue, so these would be refused if the slot were still taken.
    assert one_slot_server.speak_one("再见", SEED=1, MAX_NEW_TOKENS=2) == expected
    assert refusal.status == "CANCELLED"
    match = re.fullmatch(
        r"in ensemble 'chattts', gpt: deadline of (\d+) ms exceeded after (\d+) steps", refusal.text
    )
    assert match
    assert abs(int(match[1]) - DEADLINE_MS) <= 5
    assert 0 < int(match[2]) < LONG["MAX_NEW_TOKENS"]


def test_a_deadline_ends_every_row_of_its_call_and_no_other_call(server: RunningServer):
    other = {"SEED": 6, "MAX_NEW_TOKENS": 60}
    expected = server.speak_one("你好，世界。", **other)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.speak_one, "你好，世界。", **other)
        refusal = server.refused(["你好"] * 7, **LONG, timeout_us=DEADLINE_MS * 1000)

    assert refusal.status == "CANCELLED"
    assert "gpt: deadline of " in refusal.text
    assert running.result() == expected


def test_a_deadline_that_is_kept_changes_nothing(one_slot_server: RunningServer):
    without = one_slot_server.speak_one("你好", SEED=3, MAX_NEW_TOKENS=4)

    within = one_slot_server.speak_one("你好", SEED=3, MAX_NEW_TOKENS=4, timeout_us=30_000_000)

    assert within == without


def num_taken_over(server: RunningServer) -> int:
    """Requests that `gpt` has queued; Triton counts one when `execute` returns, not at its end."""
    (statistics,) = server.client.get_inference_statistics("gpt").model_stats
    return int(statistics.execution_count)


def wait_until_taken_over(server: RunningServer, count: int, timeout_s: float = 10.0) -> None:
    """A trial request could take the one slot itself, so the statistics are asked."""
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while num_taken_over(server) < count:
        assert time.monotonic() < deadline_s, "the request did not reach the engine in time"
        pause.wait(0.005)
