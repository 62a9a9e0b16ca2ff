"""Closed and open loops, the warm-up and the search for the capacity, in a time that jumps."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from load_fakes import SECOND, ScriptedSpeaker, run_jumping

from chattts_triton.errors import ChatTTSError, InvalidRequestError
from chattts_triton.load.capacity import Level, find_capacity, highest
from chattts_triton.load.loops import closed_loop, open_loop
from chattts_triton.load.plan import NUM_WARMUP_AT_A_RATE, LoadPlan, arrivals_s
from chattts_triton.load.run import run_load
from chattts_triton.load.take import Failure

TEXTS = ("a", "b", "c")
BROKEN = Failure("generation", "the graph gave NaN")
FULL = Failure("overloaded", "the queue is full", is_refusal=True)


def test_a_closed_loop_asks_again_as_soon_as_it_is_answered():
    speaker = ScriptedSpeaker(delays_s=lambda num_open: [2.0])
    plan = LoadPlan(TEXTS, num_requests=5, concurrency=2)

    spoken = run_jumping(closed_loop(speaker, plan.measured(), 2))

    assert speaker.most_open == 2
    assert [one.began_s for one in spoken] == [0.0, 0.0, 2.0, 2.0, 4.0]
    assert [one.latency_s for one in spoken] == [2.0] * 5


def test_an_open_loop_asks_at_its_times_whatever_becomes_of_the_requests():
    speaker = ScriptedSpeaker(delays_s=lambda num_open: [10.0])
    plan = LoadPlan(TEXTS, num_requests=4, rate_per_s=1.0)

    spoken = run_jumping(open_loop(speaker, plan.measured(), [0.5, 1.0, 1.25, 4.0]))

    assert [one.planned_s for one in spoken] == [0.5, 1.0, 1.25, 4.0]
    assert [one.began_s for one in spoken] == [0.5, 1.0, 1.25, 4.0]
    assert speaker.most_open == 4


def test_waiting_for_a_turn_counts_from_the_planned_arrival():
    """A load that counts from the sending would hide its own queue."""
    speaker = ScriptedSpeaker(delays_s=lambda num_open: [4.0])
    plan = LoadPlan(TEXTS, num_requests=3, rate_per_s=1.0, concurrency=1)

    spoken = run_jumping(open_loop(speaker, plan.measured(), [1.0, 2.0, 3.0], concurrency=1))

    assert [one.began_s for one in spoken] == [1.0, 5.0, 9.0]
    assert [one.latency_s for one in spoken] == [4.0, 7.0, 10.0]
    assert [one.ttfa_s for one in spoken] == [4.0, 7.0, 10.0]


def test_arrivals_come_from_the_seed_at_the_rate():
    times_s = arrivals_s(5.0, 20_000, seed=3)

    assert times_s == arrivals_s(5.0, 20_000, seed=3)
    assert times_s != arrivals_s(5.0, 20_000, seed=4)
    assert times_s == sorted(times_s)
    # The mean of 20,000 exponential gaps lies within 5 deviations: 5 / sqrt(20000) = 3.5 %.
    assert times_s[-1] / 20_000 == pytest.approx(1 / 5.0, rel=0.035)


def test_the_warm_up_is_dropped_and_changes_no_request():
    speaker = ScriptedSpeaker()
    plan = LoadPlan(TEXTS, num_requests=4, concurrency=2, num_warmup=3, seed=7)

    run = run_jumping(run_load(speaker, plan))

    measured = [("a", 7), ("b", 8), ("c", 9), ("a", 10)]
    assert sorted(speaker.asked[3:], key=lambda asked: asked[1]) == measured
    assert not set(speaker.asked[:3]) & set(measured)
    assert [(one.request.text, one.request.seed) for one in run.spoken] == measured
    assert (run.began_s, run.elapsed_s) == (2.0, 2.0)


def test_a_warm_up_is_as_long_as_the_concurrency_or_fixed_at_a_rate():
    assert LoadPlan(TEXTS, 4, concurrency=6).warmup == 6
    assert LoadPlan(TEXTS, 4, concurrency=6, rate_per_s=1.0).warmup == NUM_WARMUP_AT_A_RATE
    assert LoadPlan(TEXTS, 4, concurrency=6, num_warmup=0).dropped() == []


def test_a_warm_up_that_fails_ends_the_measurement_before_it_begins():
    speaker = ScriptedSpeaker(failures=deque([None, BROKEN]))
    plan = LoadPlan(TEXTS, num_requests=50, concurrency=1, num_warmup=2)

    with pytest.raises(ChatTTSError, match=r"^warm-up: generation: the graph gave NaN$"):
        run_jumping(run_load(speaker, plan))

    assert len(speaker.asked) == 2


def test_a_refusal_in_the_warm_up_is_no_failure():
    speaker = ScriptedSpeaker(failures=deque([FULL]))
    plan = LoadPlan(TEXTS, num_requests=2, concurrency=1, num_warmup=1)

    run = run_jumping(run_load(speaker, plan))

    assert [one.take.is_whole for one in run.spoken] == [True, True]


def test_a_rate_drives_an_open_loop():
    speaker = ScriptedSpeaker(delays_s=lambda num_open: [100.0])
    plan = LoadPlan(TEXTS, num_requests=9, rate_per_s=2.0, num_warmup=0, seed=5)

    run = run_jumping(run_load(speaker, plan))

    assert speaker.most_open == 9
    assert [one.planned_s for one in run.spoken] == pytest.approx(arrivals_s(2.0, 9, seed=5))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_requests": 0}, "requests: got 0, wanted 1 to 1000000"),
        ({"concurrency": 0}, "concurrency: got 0, wanted 1 to 1024"),
        ({"concurrency": None}, "concurrency: got None, wanted 1 to 1024"),
        ({"concurrency": 0, "rate_per_s": 1.0}, "concurrency: got 0, wanted 1 to 1024"),
        ({"rate_per_s": 0.0}, "rate: got 0.0, wanted above 0 a second"),
        ({"rate_per_s": float("nan")}, "rate: got nan, wanted above 0 a second"),
        ({"num_warmup": -1}, "warmup: got -1, wanted 0 to 1000000"),
        ({"seed": -1}, r"seed: got -1, wanted 0 to \d+"),
        ({"seed": 2**63 - 1}, r"seed: got \d+, wanted 0 to \d+"),
        ({"texts": ()}, r"texts: got \(\), wanted at least one"),
    ],
)
def test_a_plan_out_of_its_range_names_the_value(changed, message):
    values = {"texts": TEXTS, "num_requests": 4, "concurrency": 2, **changed}

    with pytest.raises(InvalidRequestError, match=f"^{message}$"):
        LoadPlan(**values)


@pytest.mark.parametrize("start", [1, 3, 16, 40])
@pytest.mark.parametrize("capacity", [0, 1, 2, 5, 11, 16, 39, 40])
def test_the_highest_number_that_holds_is_found_in_few_looks(capacity, start):
    looks = []

    async def holds(number: int) -> bool:
        looks.append(number)
        return number <= capacity

    assert asyncio.run(highest(holds, start, limit=40)) == capacity
    assert len(looks) == len(set(looks))
    assert len(looks) <= 12  # 6 doublings to 40 at the most, and as many halvings


def streaming_speaker(capacity: int) -> ScriptedSpeaker:
    """Sends a second of audio each second while so few listen, and slower where more do."""
    return ScriptedSpeaker(lambda num_open: [0.25] + [1.0 if num_open <= capacity else 1.5] * 2)


@pytest.mark.parametrize("capacity", [0, 1, 5])
def test_the_capacity_is_the_most_streams_without_an_underrun(capacity):
    speaker = streaming_speaker(capacity)
    plan = LoadPlan(TEXTS, num_requests=3, concurrency=1)
    told: list[Level] = []

    found, levels = run_jumping(find_capacity(speaker, plan, told.append))

    assert found == capacity
    assert told == levels
    assert {level.concurrency: level.holds for level in levels} == {
        level.concurrency: level.concurrency <= capacity for level in levels
    }


def test_each_caller_of_a_level_has_two_streams_at_least():
    plan = LoadPlan(TEXTS, num_requests=3, concurrency=1)

    _, levels = run_jumping(find_capacity(streaming_speaker(2), plan, lambda level: None))

    assert {level.concurrency: level.summary.num_requests for level in levels} == {
        1: 3, 2: 4, 4: 8, 3: 6
    }  # fmt: skip


@pytest.mark.parametrize("failure", [FULL, BROKEN])
def test_a_level_that_loses_a_stream_does_not_hold(failure):
    speaker = streaming_speaker(100)
    speaker.failures.extend([None, failure])  # the first is the warm-up
    plan = LoadPlan(TEXTS, num_requests=3, concurrency=1)

    found, (level,) = run_jumping(find_capacity(speaker, plan, lambda level: None))

    assert found == 0
    assert (level.summary.num_refused, level.summary.num_failed) == (
        (1, 0) if failure.is_refusal else (0, 1)
    )


def test_time_in_these_tests_is_that_of_the_script():
    async def sleep() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert run_jumping(sleep()) == 3_600
    assert SECOND == 24_000
