"""Equal to upstream ChatTTS: every token, and the waveform. The oracle runs upstream's own code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pipeline import Pipeline, Utterance

from chattts_triton.constants import num_audio_samples
from chattts_triton.engine.sequence import FinishReason
from chattts_triton.export.repository import export
from chattts_triton.export.upstream import load_upstream_chat, reference_audio, reference_codes

# Logits of two float32 programs differ by about 1e-5, so a draw that is decided by less falls
# differently, about once in 1e5 draws: 关关雎鸠，在河之洲。窈窕淑女，君子好逑。 with seed 42 on the
# tiny stand-in is such a case, at its second step. None of these is.
TEXTS = [
    "你好，世界。",
    "今天天气怎么样啊",
    "四川美食确实以辣闻名，但也有不辣的选择。",
    "嗯",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    "我喜欢《三体》和「流浪地球」",
    "这些小吃口味温和[uv_break]，也很受欢迎？",
    "欢迎使用[laugh]，请慢用[lbreak]",
    "作为连续五年全球新能源销量冠军。",
    "说得好！再来一遍；谢谢（真的）",
    "Hello, world.",
    "The quick brown fox jumps over the lazy dog.",
    "What is [uv_break]your favorite english food?[laugh][lbreak]",
    "I'm fine, don't worry!",
    "Yes",
    "A state-of-the-art text to speech server",
    "总结一下，AI Agent是大模型功能的扩展",
    "第一个例子是，The book that I bought yesterday is interesting，我昨天买的书很有趣。",
    "OK，没问题",
    "WiFi 密码是 [uv_break] abc，请记好",
]
SEEDS = (42, 2222)
MAX_NEW_CODES = 80
WAVEFORM_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def tiny_chat(tiny_checkpoint):
    return load_upstream_chat(tiny_checkpoint)


@pytest.fixture(scope="module")
def tiny_pipeline(tiny_repositories):
    pipeline = Pipeline(tiny_repositories["fp32"], max_num_seqs=4)
    yield pipeline
    pipeline.close()


def draw_speaker(chat, seed: int) -> str:
    """Upstream's own random speaker for a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return chat.sample_random_speaker()


def assert_equal_to_upstream(pipeline, chat, text: str, seed: int, max_new_codes: int) -> bool:
    """Whether the sequence ended by itself, all comparisons having held."""
    utterance = pipeline.submit(Utterance(text, seed, max_new_codes))
    sequence = utterance.wait()
    audio = pipeline.decoder.decode(sequence.hiddens)

    codes, hiddens = reference_codes(
        chat, utterance.spoken, draw_speaker(chat, seed), seed, max_new_codes
    )

    assert np.array_equal(sequence.tokens, codes)
    wanted = np.clip(reference_audio(chat, hiddens), -1.0, 1.0)
    assert audio.shape == wanted.shape == (num_audio_samples(len(codes)),)
    assert len(audio) == 512 * len(codes) - 256
    assert np.abs(audio - wanted).max() <= WAVEFORM_TOLERANCE
    return sequence.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", TEXTS)
def test_tiny_weights_give_upstreams_tokens_and_waveform(tiny_pipeline, tiny_chat, text, seed):
    assert_equal_to_upstream(tiny_pipeline, tiny_chat, text, seed, MAX_NEW_CODES)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_sequence_that_ends_by_itself_ends_where_upstreams_does(tiny_pipeline, tiny_chat, seed):
    assert assert_equal_to_upstream(tiny_pipeline, tiny_chat, "OK，没问题", seed, 250)


def test_full_weights_give_upstreams_tokens_and_waveform(full_checkpoint, tmp_path):
    export(full_checkpoint, tmp_path / "repository", "fp32")
    pipeline, chat = Pipeline(tmp_path / "repository"), load_upstream_chat(full_checkpoint)

    for text, seed in [("你好，世界。", 42), ("The quick brown fox jumps.", 7)]:
        assert_equal_to_upstream(pipeline, chat, text, seed, 60)

    pipeline.close()
