"""What a machine's kernels round by its company is found out at the start, and avoided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.manifest import load_manifest

NUM_POSITIONS = 40
LEAST = np.float32(1e-6)


class RoundingRunner(ModelRunner):
    """On a machine whose kernels round an odd row, and a piece of a prompt, in another way."""

    def decode(self, embeds, *arguments):
        logits, hidden = super().decode(embeds, *arguments)
        if self._padded(len(embeds)) % 2:
            hidden[-1] += LEAST
        return logits, hidden

    def prefill(self, slot, embeds, start=0):
        logits, hidden = super().prefill(slot, embeds, start)
        return logits + LEAST * bool(start), hidden


def make_runner(kind: type[ModelRunner], repository: Path, *, exact: bool) -> ModelRunner:
    manifest = load_manifest(repository)
    return kind(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=3,
        max_model_len=64,
        threads=1,
        exact_batching=exact,
    )


def hidden_of_the_first(runner: ModelRunner, num_rows: int) -> bytes:
    embeds = np.random.default_rng(1).standard_normal((64, 768), dtype=np.float32)
    for slot in range(num_rows):
        runner.prefill(slot, embeds[slot : slot + 20])
    _, hidden = runner.decode(embeds[:num_rows], np.full(num_rows, 20, dtype=np.int32))
    return hidden[0].tobytes()


@pytest.mark.parametrize("kind", [ModelRunner, RoundingRunner])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_row_keeps_its_bits_alone_and_in_company(tiny_repositories, kind, precision):
    runner = make_runner(kind, tiny_repositories[precision], exact=True)

    alone = hidden_of_the_first(runner, 1)

    assert hidden_of_the_first(runner, 2) == alone
    assert hidden_of_the_first(runner, 3) == alone


def test_without_exact_batching_no_row_is_padded(tiny_repositories):
    runner = make_runner(RoundingRunner, tiny_repositories["int8"], exact=False)

    assert hidden_of_the_first(runner, 1) != hidden_of_the_first(runner, 2)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_prompt_may_be_cut_where_pieces_come_to_the_bits_of_the_whole(
    tiny_repositories, precision
):
    runner = make_runner(ModelRunner, tiny_repositories[precision], exact=True)
    embeds = np.random.default_rng(2).standard_normal((NUM_POSITIONS, 768), dtype=np.float32)
    whole = runner.prefill(0, embeds)

    runner.prefill(1, embeds[:13])
    pieces = runner.prefill(1, embeds[13:], 13)

    is_same = all(a.tobytes() == b.tobytes() for a, b in zip(whole, pieces, strict=True))
    assert runner.may_cut_prompts is is_same


@pytest.mark.parametrize(("exact", "may_cut"), [(True, False), (False, True)])
def test_where_pieces_come_to_other_bits_a_prompt_is_cut_only_if_bits_do_not_matter(
    tiny_repositories, exact, may_cut
):
    runner = make_runner(RoundingRunner, tiny_repositories["int8"], exact=exact)

    assert runner.may_cut_prompts is may_cut
