"""Refinement equals upstream's, token for token, and so does speaking with a voice sample."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from pipeline import Pipeline, Utterance
from test_parity import TEXTS, draw_speaker

from chattts_triton.engine.sequence import DEFAULT_PRIORITY, Sequence, Stage
from chattts_triton.export.upstream import load_upstream_chat, reference_codes
from chattts_triton.serving import utterance as spoken_text
from chattts_triton.serving.utterance import _REFINEMENT
from chattts_triton.text.cleaner import clean
from chattts_triton.text.prompt import PromptEncoder

STEPS = 40
# Upstream's loop passes an argument that transformers wants to rename.
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def chat(tiny_checkpoint):
    return load_upstream_chat(tiny_checkpoint)


@pytest.fixture(scope="module")
def pipeline(tiny_repositories):
    pipeline = Pipeline(tiny_repositories["fp32"], max_num_seqs=4)
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def encoder(pipeline, tiny_repositories) -> PromptEncoder:
    manifest = pipeline.manifest
    directory = manifest.member_directory(tiny_repositories["fp32"], "preprocess")
    return PromptEncoder(directory / "tokenizer.json", manifest.special_ids)


def refine_upstream(chat, text: str, tags: str, seed: int) -> np.ndarray:
    params = chat.RefineTextParams(prompt=tags, max_new_token=STEPS, show_tqdm=False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return chat._refine_text([text], chat.device, params).ids[0].numpy()


def refine(pipeline, ids: list[int], seed: int) -> Sequence:
    done = threading.Event()
    sequence = Sequence(
        "test",
        np.asarray(ids, dtype=np.int32),
        np.zeros(768, dtype=np.float32),
        replace(_REFINEMENT, seed=seed, max_new_codes=STEPS),
        lambda _: done.set(),
        stage=Stage.TEXT,
    )
    pipeline.engine.add_request([sequence])
    assert done.wait(timeout=60)
    return sequence


@pytest.mark.parametrize("tags", ["", "[oral_2][laugh_0][break_6]"])
@pytest.mark.parametrize(("text", "seed"), [(TEXTS[0], 42), (TEXTS[4], 7), (TEXTS[11], 3)])
def test_refined_ids_are_upstreams_and_so_is_the_text_they_stand_for(
    pipeline, chat, encoder, text, seed, tags
):
    sequence = refine(pipeline, encoder.encode_refinement(clean(text), tags), seed)

    wanted = refine_upstream(chat, clean(text), tags, seed)
    assert np.array_equal(sequence.tokens[:, 0], wanted)
    kept = wanted[wanted < chat.tokenizer.break_0_ids]
    (upstream_text,) = chat.tokenizer.decode([torch.from_numpy(kept)])
    assert encoder.encode(encoder.decode_refined(wanted), 5) == encoder.encode(upstream_text, 5)


def test_a_refined_text_is_spoken_as_upstream_speaks_it(pipeline, chat, encoder):
    """B-46: each text is refined alone, so that a neighbour's padding cannot reach it."""
    seed = 42
    refined = encoder.decode_refined(
        refine(pipeline, encoder.encode_refinement("你好，世界。"), seed).tokens[:, 0]
    )
    codes, _ = reference_codes(chat, refined, draw_speaker(chat, seed), seed, STEPS)
    utterance = pipeline.submit(Utterance("你好", seed, STEPS))
    utterance.wait()
    done = threading.Event()
    ours = Sequence(
        "test",
        np.asarray(encoder.encode(refined, 5), dtype=np.int32),
        utterance.sequence.speaker_embedding,
        utterance.sequence.params,
        lambda _: done.set(),
    )

    pipeline.engine.add_request([ours])
    assert done.wait(timeout=60)

    assert np.array_equal(ours.tokens, codes)


def test_a_voice_sample_goes_into_the_prompt_as_upstreams_does(pipeline, chat, encoder):
    seed, text, sample_text = 42, "今天天气怎么样啊", "你好，世界。"
    sample = np.random.default_rng(0).integers(0, 625, (37, 4), dtype=np.int32)
    params = chat.InferCodeParams(
        spk_emb=draw_speaker(chat, seed),
        spk_smp=chat.speaker.encode_prompt(torch.from_numpy(sample.T)),
        txt_smp=sample_text,
        max_new_token=STEPS,
        show_tqdm=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        outputs = next(chat._infer_code([text], False, chat.device, True, params))
    utterance = pipeline.submit(Utterance(text, seed, STEPS))
    utterance.wait()
    done = threading.Event()
    ours = Sequence(
        "test",
        np.asarray(encoder.encode(text, 5, sample_text), dtype=np.int32),
        utterance.sequence.speaker_embedding,
        utterance.sequence.params,
        lambda _: done.set(),
        prompt_codes=sample,
    )

    pipeline.engine.add_request([ours])
    assert done.wait(timeout=60)

    assert np.array_equal(ours.tokens, outputs.ids[0].numpy())
    assert not np.array_equal(ours.tokens, utterance.sequence.tokens)


def test_refining_and_then_speaking_is_what_upstream_does(chat, encoder, tiny_repositories):
    """The whole way of a REFINE text through `Utterance`, on the engine and the real graphs.

    Random weights never end a refinement and always stray. So an id that they do draw stands for
    the end, on both sides, and what they make of the text counts as the text itself.
    """
    text, seed = "你好，世界。", 42
    drawn = refine_upstream(chat, text, "", seed)
    first_at = {int(token): step for step, token in reversed(list(enumerate(drawn)))}
    end = next(token for token, step in first_at.items() if 8 <= step < 30)
    real_end, chat.tokenizer.eos_token = chat.tokenizer.eos_token, end
    pipeline = Pipeline(tiny_repositories["fp32"], max_num_seqs=2, text_end=end)
    try:
        ids = refine_upstream(chat, text, "", seed)
        refined = encoder.decode_refined(ids)
        codes, _ = reference_codes(chat, refined, draw_speaker(chat, seed), seed, STEPS)
        drawing = Utterance("你好", seed, STEPS)
        pipeline.submit(drawing).wait()
        done = threading.Event()
        spoken = spoken_text.Utterance(
            [
                spoken_text.Segment(
                    text=refined,
                    text_ids=np.asarray(encoder.encode(text, 5), dtype=np.int32),
                    refine_ids=np.asarray(encoder.encode_refinement(text), dtype=np.int32),
                    params=drawing.sequence.params,
                )
            ],
            spoken_text.Prompting(
                request_id="test",
                speaker_embedding=drawing.sequence.speaker_embedding,
                prompt_codes=None,
                prompt_text="",
                speed=5,
                deadline=None,
                priority=DEFAULT_PRIORITY,
            ),
            [],
            encoder,
            pipeline.engine.continue_request,
            lambda text: done.set() if text.has_ended else None,
        )

        pipeline.engine.add_request(spoken.sequences())
        assert done.wait(timeout=60)

        assert len(ids) == first_at[end]
        assert (spoken.warnings, spoken.refined_text) == ([], refined)
        assert np.array_equal(spoken.segments[0].codes.tokens, codes)
    finally:
        chat.tokenizer.eos_token = real_end
        pipeline.close()
