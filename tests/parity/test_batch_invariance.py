"""The same text, seed and options give the same samples whatever else is running."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pipeline import Pipeline, Utterance

from chattts_triton.engine.sequence import Sequence, Stage
from chattts_triton.export.repository import export
from chattts_triton.manifest import PRECISIONS
from chattts_triton.serving.utterance import _REFINEMENT
from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder

JOBS = [
    ("你好，世界。", 42),
    ("The quick brown fox jumps over the lazy dog.", 7),
    ("嗯", 1),
    ("第一个例子是，The book that I bought yesterday is interesting，我昨天买的书很有趣。", 3),
    ("What is [uv_break]your favorite english food?[laugh][lbreak]", 2222),
    ("今天天气怎么样啊", 0),
    ("OK，没问题", 2**63 - 1),
    ("四川美食确实以辣闻名，但也有不辣的选择。", 42),
]
CAPS = (70, 30, 55, 64, 25, 48, 61, 37)
# B-46: beside the first one, the second one was refined to a long story.
REFINED = (
    "总结一下，AI Agent是大模型功能的扩展，让AI更接近于通用人工智能，也就是我们常说的AGI。",
    "你真是太聪明啦。",
)
REFINED_STEPS = 48


def alone(pipeline: Pipeline) -> list[Utterance]:
    utterances = []
    for (text, seed), cap in zip(JOBS, CAPS, strict=True):
        utterance = pipeline.submit(Utterance(text, seed, cap))
        utterance.wait()
        utterances.append(utterance)
    return utterances


def together(pipeline: Pipeline, order: random.Random) -> list[Utterance]:
    """All jobs in a random order, each a random number of milliseconds after the one before."""
    utterances = [Utterance(text, seed, cap) for (text, seed), cap in zip(JOBS, CAPS, strict=True)]
    for utterance in order.sample(utterances, len(utterances)):
        pipeline.submit(utterance)
        time.sleep(order.uniform(0.0, 0.008))  # the arrival times are what is tested
    for utterance in utterances:
        utterance.wait()
    return utterances


def assert_bit_identical(got: list[Utterance], wanted: list[Utterance]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert np.array_equal(one.sequence.tokens, other.sequence.tokens)
        assert one.sequence.hiddens.tobytes() == other.sequence.hiddens.tobytes()


def audios(pipeline: Pipeline, utterances: list[Utterance]) -> list[bytes]:
    return [pipeline.decoder.decode(each.sequence.hiddens).tobytes() for each in utterances]


def mean_batch_size(pipeline: Pipeline) -> float:
    """Since the statistics were last taken."""
    since = pipeline.engine.stats.take()
    return since.num_sequence_steps / since.num_steps


@pytest.mark.parametrize("precision", PRECISIONS)
def test_twenty_schedules_give_the_same_bits_as_each_request_alone(tiny_repositories, precision):
    """B-34, B-53: and the engine really batches meanwhile."""
    pipeline = Pipeline(tiny_repositories[precision])
    wanted = alone(pipeline)
    wanted_audios = audios(pipeline, wanted)
    pipeline.engine.stats.take()

    for schedule in range(20):
        got = together(pipeline, random.Random(schedule))
        assert_bit_identical(got, wanted)
        assert audios(pipeline, got) == wanted_audios

    assert len(set(wanted_audios)) == len(JOBS)
    assert mean_batch_size(pipeline) > 2.5
    pipeline.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_full_weights_give_the_same_bits_as_each_request_alone(
    full_checkpoint, tmp_path, precision
):
    export(full_checkpoint, tmp_path / "repository", precision)
    pipeline = Pipeline(tmp_path / "repository")
    wanted = alone(pipeline)
    pipeline.engine.stats.take()

    got = together(pipeline, random.Random(0))

    assert_bit_identical(got, wanted)
    assert audios(pipeline, got) == audios(pipeline, wanted)

    assert mean_batch_size(pipeline) > 2.5
    pipeline.close()


def refinement_of(pipeline: Pipeline, repository: Path) -> Callable[[str, int], Utterance]:
    """What submits the refinement of a text."""
    directory = pipeline.manifest.member_directory(repository, "preprocess")
    encoder = PromptEncoder(directory / TOKENIZER_FILE, pipeline.manifest.special_ids)

    def submit(text: str, seed: int) -> Utterance:
        utterance = Utterance(text, seed, REFINED_STEPS)

        def on_finished(sequence: Sequence) -> None:
            utterance.sequence = sequence
            utterance.done.set()

        params = replace(_REFINEMENT, seed=seed, max_new_codes=utterance.max_new_codes)
        ids = np.asarray(encoder.encode_refinement(text), dtype=np.int32)
        voice = np.zeros(pipeline.manifest.dims.hidden_size, dtype=np.float32)
        pipeline.engine.add_request(
            [Sequence("test", ids, voice, params, on_finished, stage=Stage.TEXT)]
        )
        return utterance

    return submit


@pytest.mark.parametrize("precision", PRECISIONS)
def test_b_46_a_refinement_is_the_same_alone_and_beside_another_and_codes(
    tiny_repositories, precision
):
    repository = tiny_repositories[precision]
    pipeline = Pipeline(repository)
    refine = refinement_of(pipeline, repository)
    spoken = [(text, seed, cap) for (text, seed), cap in zip(JOBS[:5], CAPS[:5], strict=True)]
    wanted = []
    for text in REFINED:
        wanted.append(refine(text, 42))
        wanted[-1].wait()
    pipeline.engine.stats.take()

    for order in (REFINED, REFINED[::-1]):
        codes = [pipeline.submit(Utterance(*job)) for job in spoken]
        by_text = {text: refine(text, 42) for text in order}
        for utterance in (*codes, *by_text.values()):
            utterance.wait()
        assert_bit_identical([by_text[text] for text in REFINED], wanted)

    long, short = (each.sequence.tokens for each in wanted)
    assert len(long) == len(short) == REFINED_STEPS
    assert not np.array_equal(long, short)
    assert mean_batch_size(pipeline) > 2.5
    pipeline.close()
