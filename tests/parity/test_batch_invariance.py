"""The same text, seed and options give the same samples whatever else is running."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from pipeline import Pipeline, Utterance

from chattts_triton.export.repository import export

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
        time.sleep(order.uniform(0.0, 0.02))  # the arrival times are what is tested
    for utterance in utterances:
        utterance.wait()
    return utterances


def assert_bit_identical(pipeline: Pipeline, got: list[Utterance], wanted: list[Utterance]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert np.array_equal(one.sequence.tokens, other.sequence.tokens)
        assert one.sequence.hiddens.tobytes() == other.sequence.hiddens.tobytes()
    for one, other in zip(got[:1], wanted[:1], strict=True):
        audio = pipeline.decoder.decode(one.sequence.hiddens)
        assert audio.tobytes() == pipeline.decoder.decode(other.sequence.hiddens).tobytes()


def mean_batch_size(pipeline: Pipeline, since: tuple[int, int]) -> float:
    engine = pipeline.engine
    return (engine.num_sequence_steps - since[1]) / (engine.num_steps - since[0])


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_twenty_schedules_give_the_same_bits_as_each_request_alone(tiny_repositories, precision):
    """B-34, B-53: and the engine really batches meanwhile."""
    pipeline = Pipeline(tiny_repositories[precision])
    wanted = alone(pipeline)
    since = pipeline.engine.num_steps, pipeline.engine.num_sequence_steps

    for schedule in range(20):
        assert_bit_identical(pipeline, together(pipeline, random.Random(schedule)), wanted)

    assert mean_batch_size(pipeline, since) > 2.5
    pipeline.close()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_full_weights_give_the_same_bits_as_each_request_alone(
    full_checkpoint, tmp_path, precision
):
    export(full_checkpoint, tmp_path / "repository", precision)
    pipeline = Pipeline(tmp_path / "repository")
    wanted = alone(pipeline)
    since = pipeline.engine.num_steps, pipeline.engine.num_sequence_steps

    assert_bit_identical(pipeline, together(pipeline, random.Random(0)), wanted)

    assert mean_batch_size(pipeline, since) > 2.5
    pipeline.close()
