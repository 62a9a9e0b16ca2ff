"""Equal to upstream on weights that speak: the shipped voice, token for token to the end."""

from __future__ import annotations

import pytest
from pipeline import Pipeline
from test_parity import assert_equal_to_upstream

from chattts_triton.export.repository import export
from chattts_triton.export.upstream import load_upstream_chat
from training.sentences import SentenceSource

_SOURCE = SentenceSource(seed=7, held_out=True)
SENTENCES = [_SOURCE.figures(10) if i % 4 == 0 else _SOURCE.sentence(3, 10) for i in range(20)]
MAX_NEW_CODES = 600  # three times as many as the longest of them needs


@pytest.fixture(scope="module")
def demo_chat(demo_checkpoint):
    return load_upstream_chat(demo_checkpoint)


@pytest.fixture(scope="module")
def demo_pipeline(demo_checkpoint, tmp_path_factory):
    repository = tmp_path_factory.mktemp("demo_voice") / "model_repository"
    export(demo_checkpoint, repository, "fp32")
    pipeline = Pipeline(repository, max_num_seqs=2)
    yield pipeline
    pipeline.close()


def test_upstream_loads_the_shipped_voice_by_itself(demo_chat):
    assert demo_chat.has_loaded(use_decoder=True)


@pytest.mark.parametrize(("seed", "text"), list(enumerate(SENTENCES)), ids=SENTENCES)
def test_the_shipped_voice_gives_upstreams_tokens_and_waveform_to_the_end(
    demo_pipeline, demo_chat, seed, text
):
    assert assert_equal_to_upstream(demo_pipeline, demo_chat, text, seed, MAX_NEW_CODES)
