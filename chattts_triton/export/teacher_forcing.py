"""The same codes through the graph of any precision, so that only the arithmetic differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import DEFAULT_SPEED
from chattts_triton.engine.model_runner import Floats, ModelRunner
from chattts_triton.engine.sampler import Sampler
from chattts_triton.manifest import Dims, Manifest
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder
from chattts_triton.voices.book_file import FILE_NAME as VOICES_FILE
from chattts_triton.voices.book_file import read_entries
from chattts_triton.voices.speaker import (
    STATISTICS_FILE,
    SpeakerStatistics,
    decode_speaker,
    speaker_embedding,
)

# As cleaning gives texts out. The English ones keep to the words of the demonstration voice.
TEXTS = (
    "hello, how are you today.",
    "the red car costs twenty one dollars.",
    "good morning, this is the demonstration voice.",
    "today is monday, november thirtieth.",
    "thank you, my friend.",
    "she has three green books and one white cat.",
    "the train is here at nine o'clock.",
    "please open the door.",
    "四川美食确实以辣闻名，但也有不辣的选择。",
    "今天天气怎么样啊。",
    "昨天买的书很有趣。",
    "你好，世界。",
)


@dataclass(frozen=True)
class Prompt:
    """A text as the model is asked with it.

    Attributes:
        text_ids: (T,) int32.
        speaker_embedding: (hidden,) float32.
        seed: Of the draws.
    """

    text_ids: npt.NDArray[np.int32]
    speaker_embedding: Floats
    seed: int


@dataclass(frozen=True)
class Passes:
    """What a graph said at each step: row t is what step t is drawn from.

    Attributes:
        logits: (T, num_vq, V) float32.
        hiddens: (T, hidden) float32.
    """

    logits: Floats
    hiddens: Floats


def read_prompts(manifest: Manifest, repository: Path, num_texts: int) -> list[Prompt]:
    """The first TEXTS that the checkpoint has all words of, its own voices in turns.

    Where it brings no voices, each text has one drawn from its number.
    """
    directory = manifest.member_directory(repository, "preprocess")
    encoder = PromptEncoder(directory / TOKENIZER_FILE, manifest.special_ids)
    vocabulary = encoder.vocabulary
    known = [text for text in TEXTS if not (vocabulary and vocabulary.unknown_words(text))]
    speakers = _speakers(directory)
    return [
        Prompt(
            np.asarray(encoder.encode(text, DEFAULT_SPEED), dtype=np.int32),
            speakers[number % len(speakers)],
            seed=number,
        )
        # One that knows no text of these spells them, which is as good for this.
        for number, text in enumerate((known or TEXTS)[:num_texts])
    ]


def draw_codes(runner: ModelRunner, prompt: Prompt, max_steps: int) -> npt.NDArray[np.int64]:
    """(T, num_vq) codes as the model speaks the prompt, up to its end or `max_steps`."""
    sampler = _sampler(runner.dims)
    sampler.start(0, SamplingParams(prompt.seed, max_steps))
    logits, _ = runner.prefill(0, _embeds(runner, prompt))
    codes: list[npt.NDArray[np.int64]] = []
    while True:
        drawn = sampler.sample(logits, [0])[0]
        if runner.dims.eos_code in drawn:
            return np.stack(codes)
        codes.append(drawn)
        if len(codes) == max_steps:
            return np.stack(codes)
        logits, _ = _decode(runner, drawn, len(prompt.text_ids) + len(codes) - 1)


def force(runner: ModelRunner, prompt: Prompt, codes: npt.NDArray[np.int64]) -> Passes:
    """Run the prompt and then the codes, one step after the other, whatever the model says.

    Args:
        runner: With room for prompt and codes in its first slot.
        prompt: What was spoken.
        codes: (T, num_vq), what was drawn; at least one step.
    """
    passes = [runner.prefill(0, _embeds(runner, prompt))]
    for step, drawn in enumerate(codes[:-1]):
        logits, hidden = _decode(runner, drawn, len(prompt.text_ids) + step)
        passes.append((logits.copy(), hidden.copy()))
    return Passes(
        np.concatenate([logits for logits, _ in passes]),
        np.concatenate([hidden for _, hidden in passes]),
    )


def _decode(
    runner: ModelRunner, drawn: npt.NDArray[np.int64], num_cached: int
) -> tuple[Floats, Floats]:
    return runner.decode(runner.embed_codes(drawn[None]), np.asarray([num_cached], dtype=np.int32))


def _embeds(runner: ModelRunner, prompt: Prompt) -> Floats:
    return runner.embed_prompt(prompt.text_ids, prompt.speaker_embedding)


def _sampler(dims: Dims) -> Sampler:
    return Sampler(
        num_heads=dims.num_vq,
        vocabulary_size=dims.num_audio_tokens,
        end_token=dims.eos_code,
        max_num_seqs=1,
    )


def _speakers(directory: Path) -> list[Floats]:
    statistics = SpeakerStatistics(directory / STATISTICS_FILE)
    voices = directory / VOICES_FILE
    strings = [entry.speaker for entry in read_entries(voices).values()] if voices.exists() else []
    vectors = [decode_speaker(text, statistics.hidden_size) for text in strings if text]
    vectors = vectors or [statistics.draw(seed) for seed in range(len(TEXTS))]
    return [speaker_embedding(vector) for vector in vectors]
