"""The whole recipe, a few steps of each stage: it ends in a checkpoint that upstream loads."""

from __future__ import annotations

import pytest
from safetensors import safe_open

from chattts_triton.export import checkpoint as layout
from chattts_triton.export.repository import export
from chattts_triton.export.upstream import load_upstream_chat, reference_codes
from training.recipe import SMOKE, run
from training.tokens import Tokens

_MAX_BYTES = 30_000_000


@pytest.fixture
def smoke_voice(tmp_path, monotonous_flite):
    run(SMOKE, tmp_path / "work", tmp_path / "voice")
    return tmp_path / "voice"


def test_the_recipe_ends_in_a_voice_that_upstream_and_the_export_take(smoke_voice, tmp_path):
    chat = load_upstream_chat(smoke_voice)
    codes, hiddens = reference_codes(
        chat, "the red car.", chat.sample_random_speaker(), seed=42, max_new_codes=5
    )
    manifest = export(smoke_voice, tmp_path / "repository", "int8")

    assert codes.shape[1] == 4
    assert hiddens.shape == (len(codes), 256)
    assert manifest.dims.num_text_tokens == Tokens().count == chat.tokenizer.len

    files = [path for path in smoke_voice.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < _MAX_BYTES
    with safe_open(smoke_voice / layout.GPT, framework="np") as gpt:
        assert gpt.get_slice("layers.0.mlp.up_proj.weight").get_dtype() == "F16"

    # Complete stages are not run again, and the same checkpoint comes out.
    states = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.pt")}
    written = (smoke_voice / layout.EMBED).read_bytes()
    run(SMOKE, tmp_path / "work", smoke_voice)
    assert (smoke_voice / layout.EMBED).read_bytes() == written
    assert states == {path: path.stat().st_mtime_ns for path in states}
