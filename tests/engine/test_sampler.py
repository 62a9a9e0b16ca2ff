"""The batched sampler against a plain loop that applies the rules one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fakes import DIMS, make_samplers

from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.sequence import Stage
from chattts_triton.sampling_params import SamplingParams


def plain_probabilities(logits, recent, params, *, is_first):
    """One codebook: (V,) scores to (V,) probabilities, in ordinary Python numbers."""
    scores = [float(x) / params.temperature for x in logits]
    for code, score in enumerate(scores):
        factor = params.repetition_penalty ** recent[-16:].count(code)
        scores[code] = score * factor if score < 0 else score / factor
    order = sorted(range(len(scores)), key=scores.__getitem__)
    largest = max(scores)
    weights = [math.exp(scores[code] - largest) for code in order]
    below, kept = 0.0, []
    for rank, (code, weight) in enumerate(zip(order, weights, strict=True)):
        below += weight / sum(weights)
        if below > 1 - params.top_p or rank >= len(order) - 3:
            kept.append(code)
    kept = kept[-max(params.top_k, 3) :]
    if is_first:
        kept = [code for code in kept if code != DIMS.eos_code]
    total = sum(math.exp(scores[code] - largest) for code in kept)
    probabilities = np.zeros(len(scores))
    for code in kept:
        probabilities[code] = math.exp(scores[code] - largest) / total
    return probabilities


def make_sampler(max_num_seqs: int) -> Sampler:
    return make_samplers(max_num_seqs)[Stage.CODE]


def draw_plainly(steps, params):
    generator = torch.Generator().manual_seed(params.seed)
    recent = [[] for _ in range(DIMS.num_vq)]
    for step, logits in enumerate(steps):
        noise = torch.empty(DIMS.num_vq, DIMS.num_audio_tokens).exponential_(generator=generator)
        for i in range(DIMS.num_vq):
            probabilities = plain_probabilities(logits[i], recent[i], params, is_first=step == 0)
            recent[i].append(int(np.argmax(probabilities / noise[i].numpy())))
    return np.asarray(recent).T


PARAMS = [
    SamplingParams(seed=1, max_new_codes=9),
    SamplingParams(seed=2, max_new_codes=9, temperature=1.0, top_p=1.0, top_k=12),
    SamplingParams(seed=3, max_new_codes=9, temperature=2.0, top_p=0.2, top_k=1),
    SamplingParams(seed=4, max_new_codes=9, repetition_penalty=1.0, top_p=0.9, top_k=5),
    SamplingParams(seed=5, max_new_codes=9, repetition_penalty=3.0, temperature=0.9),
    SamplingParams(seed=6, max_new_codes=9, repetition_penalty=0.5, top_k=626),
]


@pytest.mark.parametrize("params", PARAMS)
def test_draws_equal_those_of_a_plain_loop(params):
    steps = np.random.default_rng(params.seed).standard_normal((60, 4, 12)).astype(np.float32)
    sampler = make_sampler(1)
    sampler.start(0, params)

    drawn = np.concatenate([sampler.sample(logits[None], [0]) for logits in steps])

    assert np.array_equal(drawn, draw_plainly(steps, params))


def test_a_batch_of_different_options_draws_as_each_row_alone():
    steps = np.random.default_rng(0).standard_normal((40, 6, 4, 12)).astype(np.float32)
    together = make_sampler(6)
    for slot, params in enumerate(PARAMS):
        together.start(slot, params)

    drawn = np.stack([together.sample(logits, list(range(6))) for logits in steps], axis=1)

    for slot, params in enumerate(PARAMS):
        alone = make_sampler(1)
        alone.start(0, params)
        rows = [
            alone.sample(np.ascontiguousarray(logits[slot : slot + 1]), [0]) for logits in steps
        ]
        assert np.array_equal(drawn[slot], np.concatenate(rows))


def test_a_moved_sequence_goes_on_as_if_it_had_stayed():
    steps = np.random.default_rng(0).standard_normal((30, 1, 4, 12)).astype(np.float32)
    stays, moves = make_sampler(3), make_sampler(3)
    stays.start(0, PARAMS[4])
    moves.start(2, PARAMS[4])

    expected = [stays.sample(logits, [0]) for logits in steps]
    drawn = [moves.sample(logits, [2]) for logits in steps[:10]]
    moves.start(0, PARAMS[0])
    moves.move(2, 0)
    moves.start(2, PARAMS[1])
    drawn += [moves.sample(logits, [0]) for logits in steps[10:]]

    assert np.array_equal(drawn, expected)


def test_draws_vary_over_the_steps_and_repeat_with_the_seed():
    """B-35: the seed is set once, so equal logits do not give the same code for ever."""
    logits = np.zeros((1, 4, 12), dtype=np.float32)
    params = SamplingParams(
        seed=12345, max_new_codes=16, temperature=1.0, top_p=1.0, repetition_penalty=1.0
    )

    runs = []
    for _ in range(2):
        sampler = make_sampler(1)
        sampler.start(0, params)
        runs.append(np.concatenate([sampler.sample(logits, [0]) for _ in range(16)]))

    assert np.array_equal(runs[0], runs[1])
    assert all(len(set(column)) > 1 for column in runs[0].T)
    assert not np.array_equal(runs[0][:, 0], runs[0][:, 1])


def test_the_process_wide_random_state_is_not_touched():
    """B-33."""
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    sampler = make_sampler(2)
    sampler.start(0, PARAMS[0])

    sampler.sample(np.zeros((1, 4, 12), dtype=np.float32), [0])

    assert torch.equal(torch.get_rng_state(), before_torch)
    assert np.array_equal(np.random.get_state()[1], before_numpy)


def test_the_limits_of_the_seed_are_seeds():
    for seed in (0, 2**63 - 1):
        sampler = make_sampler(1)
        sampler.start(0, SamplingParams(seed=seed, max_new_codes=1))
        assert sampler.sample(np.zeros((1, 4, 12), dtype=np.float32), [0]).shape == (1, 4)
