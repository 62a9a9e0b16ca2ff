"""What fails in a step ends the sequences concerned; all others go on, bit for bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fakes import (
    FakeKVCache,
    FakeModelRunner,
    make_engine,
    make_samplers,
    make_sequence,
    run_alone,
    run_until_idle,
)

from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.errors import GenerationError

FAILING_SEED = 13


class FailingEmbedding(FakeModelRunner):
    def embed_prompt(self, text_ids, speaker_embedding, prompt_codes):
        if text_ids[0] in self.failing_prompts:
            raise IndexError("no such id")
        return super().embed_prompt(text_ids, speaker_embedding, prompt_codes)


class FailingTextHead(FakeModelRunner):
    def text_logits(self, hiddens):
        raise MemoryError


class FailingKVCache(FakeKVCache):
    def move(self, source: int, target: int, num_positions: int) -> None:
        raise MemoryError


class FailingSampler:
    """Draws as the one it stands before, until the calls that fail: after they have drawn."""

    def __init__(self, sampler: Sampler, failing_calls: set[int]):
        self._sampler = sampler
        self._failing_calls = failing_calls
        self._num_calls = 0
        self.end_token, self.move = sampler.end_token, sampler.move

    def start(self, slot, params):
        if params.seed == FAILING_SEED:
            raise RuntimeError("no generator")
        self._sampler.start(slot, params)

    def sample(self, logits, slots):
        tokens = self._sampler.sample(logits, slots)
        self._num_calls += 1
        if self._num_calls - 1 in self._failing_calls:
            raise RuntimeError("not enough memory to draw")
        return tokens


def make_failing_samplers(stage: Stage, failing_calls: set[int], num_slots: int = 4):
    samplers = make_samplers(num_slots)
    return samplers | {stage: FailingSampler(samplers[stage], failing_calls)}


def by_prompt(finished: list[Sequence]) -> dict[int, Sequence]:
    assert len(finished) == len(set(finished))
    return {int(sequence.text_ids[0]): sequence for sequence in finished}


def assert_as_alone(sequence: Sequence, **options) -> None:
    prompt = int(sequence.text_ids[0])
    alone = run_alone(prompt, seed=sequence.params.seed, stage=sequence.stage, **options)
    assert sequence.error is None
    assert np.array_equal(sequence.tokens, alone.tokens)
    assert np.array_equal(sequence.hiddens, alone.hiddens)


def test_logits_that_are_not_finite_fail_their_sequence_and_no_other():
    runner = FakeModelRunner(broken_prompts={8})
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(6, finished), make_sequence(8, finished)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert isinstance(ended[8].error, GenerationError)
    assert str(ended[8].error) == "logits are not finite at step 0"
    assert_as_alone(ended[6])


@pytest.mark.parametrize(
    ("runner", "seed", "message"),
    [
        (FakeModelRunner(failing_prompts={8}), 0, "out of memory"),
        (FakeModelRunner(failing_prompts={8}, failure=MemoryError), 0, "step failed: MemoryE"),
        (FailingEmbedding(failing_prompts={8}), 0, "no such id"),
        (FakeModelRunner(), FAILING_SEED, "no generator"),
    ],
    ids=["model", "memory", "embedding", "sampler"],
)
def test_a_failing_prefill_ends_its_sequence_and_no_other(runner, seed, message):
    engine, finished = make_engine(runner, make_failing_samplers(Stage.CODE, set())), []
    engine.add_request([make_sequence(12, finished, seed=3)])
    engine.step()
    engine.add_request([make_sequence(8, finished, seed=seed), make_sequence(5, finished, seed=4)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert isinstance(ended[8].error, GenerationError)
    assert message in str(ended[8].error)
    assert_as_alone(ended[12])
    assert_as_alone(ended[5])


def test_a_prefill_whose_draw_fails_ends_its_sequence_and_no_other():
    # The first sequence draws twice in its first step, and the next one in its prefill.
    samplers = make_failing_samplers(Stage.CODE, {2})
    engine, finished = make_engine(samplers=samplers), []
    engine.add_request([make_sequence(12, finished, seed=3)])
    engine.step()
    engine.add_request([make_sequence(8, finished), make_sequence(5, finished, seed=4)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert "not enough memory to draw" in str(ended[8].error)
    assert_as_alone(ended[12])
    assert_as_alone(ended[5])


@pytest.mark.parametrize("failure", [lambda: GenerationError("out of memory"), MemoryError])
def test_a_batch_that_fails_goes_on_without_its_newest_sequences(failure):
    runner = FakeModelRunner(max_batch_size=2, failure=failure)
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(n, finished, seed=n) for n in (20, 15, 10, 11, 12)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert runner.batch_sizes[:5] == [1, 2, 3, 2, 3]
    assert_as_alone(ended[20])
    assert_as_alone(ended[15])
    for prompt in (10, 11, 12):
        assert isinstance(ended[prompt].error, GenerationError)
        assert ended[prompt].num_steps == 1


def test_the_newest_is_found_in_whatever_slot_it_came_to_stand():
    """The second of four ends, the last takes its slot, and then a step fails."""
    runner = FakeModelRunner(failing_calls={6})
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(n, finished, seed=n) for n in (20, 4, 21, 22)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert runner.batch_sizes[5:8] == [3, 3, 2]
    assert "out of memory" in str(ended[22].error)
    for prompt in (20, 4, 21):
        assert_as_alone(ended[prompt])


def test_a_failing_batch_of_both_stages_goes_on_as_without_the_failure():
    runner = FakeModelRunner(failing_calls={4, 7})
    engine, finished = make_engine(runner), []
    engine.add_request(
        [
            make_sequence(7, finished, cap=9, stage=Stage.TEXT),
            make_sequence(20, finished, seed=5),
            make_sequence(8, finished, cap=30, stage=Stage.TEXT),
            make_sequence(21, finished, seed=6),
        ]
    )

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert {prompt for prompt, sequence in ended.items() if sequence.error} == {8, 21}
    assert_as_alone(ended[7], cap=9)
    assert_as_alone(ended[20])


def test_where_every_batch_fails_all_that_run_end_and_the_engine_lives():
    runner = FakeModelRunner(failing_calls={2, 3, 4})
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(n, finished) for n in (20, 15, 10)])
    for _ in range(3):
        engine.step()

    assert len(finished) == 3
    assert engine.num_running == 0
    engine.add_request([make_sequence(6, finished)])
    run_until_idle(engine)
    assert_as_alone(finished[3])


def test_codes_that_cannot_be_drawn_leave_text_alone():
    samplers = make_failing_samplers(Stage.CODE, {5})
    engine, finished = make_engine(samplers=samplers), []
    engine.add_request(
        [
            make_sequence(7, finished, cap=9, stage=Stage.TEXT),
            make_sequence(20, finished, seed=5),
            make_sequence(8, finished, cap=9, stage=Stage.TEXT),
            make_sequence(21, finished, seed=6),
        ]
    )
    for _ in range(5):
        engine.step()
    engine.add_request([make_sequence(11, finished, seed=7)])

    run_until_idle(engine)

    ended = by_prompt(finished)
    for prompt in (20, 21):
        assert "not enough memory to draw" in str(ended[prompt].error)
        assert ended[prompt].num_steps > 0
    assert_as_alone(ended[7], cap=9)
    assert_as_alone(ended[8], cap=9)
    assert_as_alone(ended[11])


def test_text_that_cannot_be_drawn_leaves_codes_alone():
    engine, finished = make_engine(FailingTextHead()), []
    engine.add_request(
        [make_sequence(7, finished, cap=9, stage=Stage.TEXT), make_sequence(20, finished, seed=5)]
    )

    run_until_idle(engine)

    ended = by_prompt(finished)
    assert isinstance(ended[7].error, GenerationError)
    assert_as_alone(ended[20])


def start_and_wait(engine, sequences: list[Sequence]) -> None:
    """Run the loop until the sequences have ended."""
    done = threading.Semaphore(0)
    for sequence in sequences:
        sequence.notify_at(1 << 30, done.release)
    engine.add_request(sequences)
    engine.start()
    for _ in sequences:
        assert done.acquire(timeout=10)


def test_what_fails_beyond_all_that_ends_what_ran_and_the_loop_goes_on():
    runner = FakeModelRunner()
    runner.kv_cache = FailingKVCache(4)
    engine, finished = make_engine(runner), []

    start_and_wait(engine, [make_sequence(n, finished, request_id=str(n)) for n in (3, 20, 21)])
    later = make_sequence(6, finished)
    done = threading.Event()
    later.notify_at(1 << 30, done.set)
    engine.add_request([later])
    assert done.wait(timeout=10)
    engine.stop()

    ended = by_prompt(finished)
    assert ended[3].finish_reason is FinishReason.STOP
    assert {str(ended[n].error) for n in (20, 21)} == {"step failed: MemoryError()"}
    assert_as_alone(ended[6])


def test_owners_and_readers_that_raise_harm_nobody_else(caplog):
    engine, finished = make_engine(), []

    def fail(*_):
        raise RuntimeError("my own fault")

    careless = make_sequence(3, [])
    careless._on_finished = fail
    read = make_sequence(9, finished)
    read.notify_at(5, fail)

    start_and_wait(engine, [make_sequence(20, finished)])
    other = make_sequence(12, finished)
    done = threading.Event()
    other.notify_at(1 << 30, done.set)
    engine.add_request([careless, read, other])
    assert done.wait(timeout=10)
    engine.stop()

    ended = by_prompt(finished)
    assert careless.finish_reason is FinishReason.STOP
    for prompt in (9, 12, 20):
        assert_as_alone(ended[prompt])
    assert caplog.text.count("RuntimeError: my own fault") == 2


def test_the_error_of_a_failed_step_keeps_none_of_its_arrays():
    engine, finished = make_engine(FakeModelRunner(max_batch_size=0)), []
    engine.add_request([make_sequence(5, finished)])

    engine.step()

    error = finished[0].error
    assert error.__traceback__ is None
    assert error.__context__ is error.__cause__ is None
