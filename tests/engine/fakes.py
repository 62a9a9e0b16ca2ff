"""A model runner with behaviour but no model, and sequences to feed it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.sequence import Deadline, Sequence, Stage
from chattts_triton.errors import GenerationError
from chattts_triton.manifest import Dims
from chattts_triton.sampling_params import SamplingParams

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


@dataclass
class FakeKVCache:
    """Remembers which prompt each slot holds, as a real cache does by its contents."""

    owners: list[int | None]
    max_len: int = 3072

    def move(self, source: int, target: int, num_positions: int) -> None:
        assert num_positions > 0
        self.owners[target] = self.owners[source]


@dataclass
class FakeModelRunner:
    """Logits depend on the slot's prompt, the number of cached positions and the codes fed.

    A prompt's first id says how many steps it takes until only the end code is likely; an id of
    `NEVER` has no end. `broken_prompts` give NaN, `failing_calls` raises at those decode calls.
    """

    NEVER = 99

    num_slots: int = 4
    dims: Dims = DIMS
    broken_prompts: set[int] = field(default_factory=set)
    failing_calls: set[int] = field(default_factory=set)
    batch_sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv_cache = FakeKVCache([None] * self.num_slots)

    def embed_prompt(self, text_ids, speaker_embedding, prompt_codes):
        return np.full((len(text_ids), 8), text_ids[0], dtype=np.float32)

    def embed_codes(self, codes):
        return np.zeros((len(codes), 8), dtype=np.float32)

    def embed_text(self, text_ids):
        return np.zeros((len(text_ids), 8), dtype=np.float32)

    def prefill(self, slot, embeds):
        self.kv_cache.owners[slot] = int(embeds[0, 0])
        return self._logits(slot, 0)[None], np.full((1, 8), embeds[0, 0], dtype=np.float32)

    def text_logits(self, hiddens):
        """The only likely id is the prompt's own, so text goes on until its cap."""
        logits = np.full((len(hiddens), 1, NUM_TEXT_TOKENS), -30.0, dtype=np.float32)
        for row, hidden in zip(logits, hiddens, strict=True):
            row[0, int(hidden[0])] = 30.0
        return logits

    def decode(self, embeds, num_cached):
        self.batch_sizes.append(len(embeds))
        if len(self.batch_sizes) - 1 in self.failing_calls:
            raise GenerationError("out of memory")
        logits = [self._logits(slot, int(n)) for slot, n in enumerate(num_cached)]
        owners = [self.kv_cache.owners[slot] for slot in range(len(embeds))]
        return np.stack(logits), np.tile(np.asarray(owners, dtype=np.float32)[:, None], (1, 8))

    def _logits(self, slot: int, position: int):
        prompt = self.kv_cache.owners[slot]
        if prompt in self.broken_prompts:
            return np.full((4, 12), np.nan, dtype=np.float32)
        random = np.random.default_rng((prompt, position))
        logits = random.standard_normal((4, 12), dtype=np.float32)
        logits[:, DIMS.eos_code] = -30.0
        if prompt != self.NEVER and position >= prompt:
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


def make_sequence(
    num_steps: int,
    finished: list[Sequence],
    *,
    seed: int = 0,
    cap: int = 50,
    request_id: str = "r",
    deadline: Deadline | None = None,
    stage: Stage = Stage.CODE,
) -> Sequence:
    """A one-id prompt that ends after `num_steps` steps and then joins `finished`."""
    return Sequence(
        request_id,
        np.asarray([num_steps], dtype=np.int32),
        np.zeros(8, dtype=np.float32),
        SamplingParams(seed=seed, max_new_codes=cap),
        finished.append,
        deadline=deadline,
        stage=stage,
    )
