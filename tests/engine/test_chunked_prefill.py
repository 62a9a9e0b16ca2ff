"""A long prompt is run in pieces while others run, and comes to the same as at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fakes import FakeModelRunner, make_engine, make_sequence, run_alone, run_until_idle

from chattts_triton.engine.sequence import FinishReason
from chattts_triton.errors import RequestCancelledError

CHUNK = 16
NEVER = FakeModelRunner.NEVER


def test_alone_a_prompt_is_run_at_once():
    runner = FakeModelRunner()
    engine = make_engine(runner, prefill_chunk=CHUNK)

    engine.add_request([make_sequence(NEVER, [], prompt_length=60)])
    engine.step()

    assert runner.passes == [("prefill", 60), ("decode", 1)]


@pytest.mark.parametrize(
    ("prompt_length", "pieces"),
    [(60, [16, 16, 16, 12]), (59, [16, 16, 27]), (28, [16, 12]), (27, [27]), (5, [5])],
)
def test_while_others_run_a_prompt_is_run_in_pieces_none_of_them_short(prompt_length, pieces):
    runner = FakeModelRunner()
    engine = make_engine(runner, prefill_chunk=CHUNK)
    engine.add_request([make_sequence(NEVER, [])])
    engine.step()
    runner.passes.clear()

    engine.add_request([make_sequence(NEVER, [], prompt_length=prompt_length)])
    for _ in pieces:
        engine.step()

    wanted = []
    for number, piece in enumerate(pieces, 1):
        wanted += [("prefill", piece), ("decode", 2 if number == len(pieces) else 1)]
    assert runner.passes == wanted


@pytest.mark.parametrize(
    ("options", "may_cut"), [({"prefill_chunk": 0}, True), ({"prefill_chunk": CHUNK}, False)]
)
def test_a_prompt_is_never_cut_where_that_is_turned_off_or_would_change_its_bits(options, may_cut):
    runner = FakeModelRunner(may_cut_prompts=may_cut)
    engine = make_engine(runner, **options)
    engine.add_request([make_sequence(NEVER, [])])
    engine.step()

    engine.add_request([make_sequence(NEVER, [], prompt_length=60)])
    engine.step()

    assert ("prefill", 60) in runner.passes


def test_pieces_come_to_the_same_as_the_whole_whoever_leaves_meanwhile():
    jobs = [(3, 1, 1), (70, 2, 61), (8, 3, 1), (95, 4, 90), (40, 5, 30), (5, 6, 1), (70, 7, 64)]
    alone = {job: run_alone(job[0], seed=job[1], prompt_length=job[2]).tokens for job in jobs}

    for trial in range(20):
        order = random.Random(trial)
        runner = FakeModelRunner()
        engine, finished = make_engine(runner, prefill_chunk=CHUNK), []
        for num_steps, seed, length in order.sample(jobs, len(jobs)):
            engine.add_request(
                [make_sequence(num_steps, finished, seed=seed, prompt_length=length)]
            )
            for _ in range(order.randrange(4)):
                engine.step()
        run_until_idle(engine)

        assert len(finished) == len(jobs)
        assert any(kind == "prefill" and size == CHUNK for kind, size in runner.passes)
        for sequence in finished:
            job = next(job for job in jobs if job[1] == sequence.params.seed)
            assert np.array_equal(sequence.tokens, alone[job])


def test_a_sequence_that_is_cancelled_between_two_pieces_gives_its_slot_back():
    runner = FakeModelRunner()
    engine, finished = make_engine(runner, prefill_chunk=CHUNK), []
    engine.add_request([make_sequence(20, finished, request_id="old")])
    engine.step()
    engine.add_request([make_sequence(NEVER, finished, request_id="new", prompt_length=60)])
    engine.step()

    engine.abort("new")
    run_until_idle(engine)

    new, old = finished
    assert (new.request_id, new.finish_reason) == ("new", FinishReason.ABORT)
    assert isinstance(new.error, RequestCancelledError)
    assert np.array_equal(old.tokens, run_alone(20).tokens)


def test_a_piece_that_fails_ends_its_own_sequence_only():
    runner = FakeModelRunner(failing_prompts={NEVER})
    engine, finished = make_engine(runner, prefill_chunk=CHUNK), []
    engine.add_request([make_sequence(20, finished, request_id="old")])
    engine.step()

    engine.add_request([make_sequence(NEVER, finished, request_id="new", prompt_length=60)])
    run_until_idle(engine)

    new, old = finished
    assert new.finish_reason is FinishReason.ABORT
    assert str(new.error) == "out of memory"
    assert np.array_equal(old.tokens, run_alone(20).tokens)
