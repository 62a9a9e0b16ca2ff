"""A model runner with behaviour but no model, and engines and sequences around it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from chattts_triton.config import EngineConfig
from chattts_triton.engine.engine import Engine
from chattts_triton.engine.sampler import Sampler, use_one_torch_thread
from chattts_triton.engine.sequence import DEFAULT_PRIORITY, Deadline, Sequence, Stage
from chattts_triton.errors import GenerationError
from chattts_triton.manifest import Dims
from chattts_triton.sampling_params import SamplingParams

use_one_torch_thread()  # as the server does: a pool of them slows a shared machine down

NUM_TEXT_TOKENS = 100
DIMS = Dims(
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_vq=4,
    num_audio_tokens=12,
    num_text_tokens=NUM_TEXT_TOKENS,
    max_position_embeddings=4096,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
)
UNWRITTEN = -1.0
PADDING = -2.0  # what a row without a sequence writes


class FakeKVCache:
    """Remembers what was fed at each position of a slot; what moved leaves nothing behind."""

    max_len = 3072

    def __init__(self, num_slots: int):
        self.fed = np.full((num_slots, self.max_len), UNWRITTEN, dtype=np.float32)
        self.num_rests = 0

    def move(self, source: int, target: int, num_positions: int) -> None:
        assert num_positions > 0
        self.fed[target] = UNWRITTEN
        self.fed[target, :num_positions] = self.fed[source, :num_positions]
        self.fed[source] = UNWRITTEN

    def give_back(self) -> None:
        self.fed[:] = UNWRITTEN
        self.num_rests += 1


@dataclass
class FakeModelRunner:
    """Logits depend on all that the slot holds: its prompt, and the tokens of every step.

    A prompt's first id says how many steps it takes until only the end code is likely; an id of
    `NEVER` has no end. `broken_prompts` give NaN, `failing_prompts` raise in the prefill,
    `failing_calls` raises at those decode calls, and so does a batch above `max_batch_size`:
    as the real one may, after the new positions were written.
    """

    NEVER = 99

    num_slots: int = 4
    dims: Dims = DIMS
    broken_prompts: set[int] = field(default_factory=set)
    failing_prompts: set[int] = field(default_factory=set)
    failing_calls: set[int] = field(default_factory=set)
    max_batch_size: int = 1 << 30
    failure: Callable[[], Exception] = lambda: GenerationError("out of memory")
    batch_sizes: list[int] = field(default_factory=list)
    passes: list[tuple[str, int]] = field(default_factory=list)  # what was run, and its size
    may_cut_prompts: bool = True
    on_decode: Callable[[], None] = lambda: None  # called before a decode call does anything

    def __post_init__(self) -> None:
        self.kv_cache = FakeKVCache(self.num_slots)

    def embed_prompt(self, text_ids, speaker_embedding, prompt_codes):
        return np.full((len(text_ids), 8), text_ids[0], dtype=np.float32)

    def embed_codes(self, codes):
        return np.repeat((codes @ [1, 12, 144, 1728])[:, None], 8, axis=1).astype(np.float32)

    def embed_text(self, text_ids):
        return np.repeat(text_ids[:, None], 8, axis=1).astype(np.float32)

    def prefill(self, slot, embeds, start=0):
        if int(embeds[0, 0]) in self.failing_prompts:
            raise self.failure()
        if start == 0:
            self.kv_cache.fed[slot] = UNWRITTEN
        end = start + len(embeds)
        self.kv_cache.fed[slot, start:end] = embeds[:, 0]
        self.passes.append(("prefill", len(embeds)))
        return self._logits(slot, end)[None], np.full((1, 8), embeds[0, 0], np.float32)

    def text_logits(self, hiddens):
        """The only likely id is the prompt's own, so text goes on until its cap."""
        logits = np.full((len(hiddens), 1, NUM_TEXT_TOKENS), -30.0, dtype=np.float32)
        for row, hidden in zip(logits, hiddens, strict=True):
            row[0, int(hidden[0])] = 30.0
        return logits

    def decode(self, embeds, num_cached, num_cached_behind=0):
        self.on_decode()
        fed, num_seqs = self.kv_cache.fed, len(embeds)
        fed[np.arange(num_seqs), num_cached] = embeds[:, 0]
        if num_seqs < self.num_slots:
            fed[num_seqs, num_cached_behind] = PADDING  # as the real one does to an even number
        self.batch_sizes.append(num_seqs)
        self.passes.append(("decode", num_seqs))
        if len(self.batch_sizes) - 1 in self.failing_calls or num_seqs > self.max_batch_size:
            raise self.failure()
        logits = [self._logits(slot, int(n) + 1) for slot, n in enumerate(num_cached)]
        return np.stack(logits), np.repeat(fed[:num_seqs, :1], 8, axis=1)

    def _logits(self, slot: int, num_positions: int):
        fed = self.kv_cache.fed[slot, :num_positions]
        assert (fed >= 0).all(), f"slot {slot} has a hole in its {num_positions} positions"
        prompt = int(fed[0])
        if prompt in self.broken_prompts:
            return np.full((4, 12), np.nan, dtype=np.float32)
        random = np.random.default_rng(zlib.crc32(fed.tobytes()))
        logits = random.standard_normal((4, 12), dtype=np.float32)
        logits[:, DIMS.eos_code] = -30.0
        if prompt != self.NEVER and num_positions > prompt:  # of a longer prompt sooner
            logits[:, DIMS.eos_code] = 60.0
        return logits


def make_samplers(max_num_seqs: int) -> dict[Stage, Sampler]:
    return {
        Stage.CODE: Sampler(
            num_heads=DIMS.num_vq,
            vocabulary_size=DIMS.num_audio_tokens,
            end_token=DIMS.eos_code,
            max_num_seqs=max_num_seqs,
        ),
        Stage.TEXT: Sampler(
            num_heads=1,
            vocabulary_size=DIMS.num_text_tokens,
            end_token=0,
            max_num_seqs=max_num_seqs,
        ),
    }


def make_engine(runner: FakeModelRunner | None = None, samplers=None, **config: int) -> Engine:
    runner = runner or FakeModelRunner()
    config = {"max_num_seqs": runner.num_slots, **config}
    return Engine(runner, samplers or make_samplers(runner.num_slots), EngineConfig(**config))


def run_until_idle(engine: Engine, max_steps: int = 500) -> None:
    for _ in range(max_steps):
        if not engine.num_running and not engine.num_waiting:
            return
        engine.step()
    raise AssertionError("the engine did not come to rest")


def make_sequence(
    num_steps: int,
    finished: list[Sequence],
    *,
    seed: int = 0,
    cap: int = 50,
    request_id: str = "r",
    deadline: Deadline | None = None,
    stage: Stage = Stage.CODE,
    priority: int = DEFAULT_PRIORITY,
    prompt_length: int = 1,
) -> Sequence:
    """A prompt of one id that ends after about `num_steps` steps and then joins `finished`."""
    return Sequence(
        request_id,
        np.full(prompt_length, num_steps, dtype=np.int32),
        np.zeros(8, dtype=np.float32),
        SamplingParams(seed=seed, max_new_codes=cap),
        finished.append,
        deadline=deadline,
        stage=stage,
        priority=priority,
    )


def run_alone(num_steps: int, **options) -> Sequence:
    """What such a sequence comes to in an engine of its own."""
    engine, finished = make_engine(), []
    engine.add_request([make_sequence(num_steps, finished, **options)])
    run_until_idle(engine)
    return finished[0]
