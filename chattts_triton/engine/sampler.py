"""Draws the tokens of all running sequences at once, each by its own generator.

Reproduces what upstream's sampling does to one text under `torch.manual_seed(seed)`. Nothing here
depends on a neighbour: every operation works along a row, and every draw comes from the row's own
generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from chattts_triton.constants import MIN_CANDIDATES, REPETITION_WINDOW_CODES
from chattts_triton.sampling_params import SamplingParams

_NEVER = -torch.inf


class Sampler:
    """State of the sampling of each slot: options, generator, recent tokens. Not thread-safe.

    Serves one vocabulary: `num_heads` tokens of it are drawn at every step (the codebooks of
    audio, or one head of text), and `end_token` in any of them ends a sequence.

    Source:
        2noise/ChatTTS@1092c1f ChatTTS/model/{gpt,processors}.py, behaviour only.
    """

    def __init__(
        self, *, num_heads: int, vocabulary_size: int, end_token: int, max_num_seqs: int
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self.end_token = end_token
        rows = (max_num_seqs, num_heads)
        self._temperature = torch.ones(rows)
        self._tail = torch.ones(rows)  # 1 - top_p: the share of probability to leave out
        self._top_k = torch.ones(rows, dtype=torch.int64)
        # penalty ** n for every n that the window allows.
        self._penalties = torch.ones((*rows, REPETITION_WINDOW_CODES + 1))
        # The last tokens of each head; where there are none yet, one that does not exist.
        self._recent = torch.full((*rows, REPETITION_WINDOW_CODES), vocabulary_size)
        self._num_drawn = np.zeros(max_num_seqs, dtype=np.int64)
        self._generators = [torch.Generator() for _ in range(max_num_seqs)]
        self._noise = torch.empty((*rows, vocabulary_size))

    def start(self, slot: int, params: SamplingParams) -> None:
        """Begin a sequence in a slot, its generator fresh from its seed."""
        self._temperature[slot] = params.temperature
        self._tail[slot] = 1.0 - params.top_p
        self._top_k[slot] = min(max(params.top_k, MIN_CANDIDATES), self._vocabulary_size)
        counts = torch.arange(REPETITION_WINDOW_CODES + 1)
        self._penalties[slot] = torch.pow(params.repetition_penalty, counts)
        self._recent[slot] = self._vocabulary_size
        self._num_drawn[slot] = 0
        self._generators[slot].manual_seed(params.seed)

    def move(self, source: int, target: int) -> None:
        """Let the sequence of one slot go on in another."""
        for state in (
            self._temperature,
            self._tail,
            self._top_k,
            self._penalties,
            self._recent,
            self._num_drawn,
        ):
            state[target] = state[source]
        swapped = self._generators[target]
        self._generators[target], self._generators[source] = self._generators[source], swapped

    def sample(self, logits: npt.NDArray[np.float32], slots: list[int]) -> npt.NDArray[np.int64]:
        """Draw one step.

        Args:
            logits: (B, num_heads, V) float32, all finite.
            slots: The B slots that the rows belong to.

        Returns:
            (B, num_heads) int64, a new array.
        """
        probabilities = self._probabilities(torch.from_numpy(logits), slots)
        # torch.multinomial on the CPU draws in just this way, but from one generator for all rows.
        noise = self._noise[: len(slots)]
        for row, slot in zip(noise, slots, strict=True):
            row.exponential_(generator=self._generators[slot])
        tokens = torch.div(probabilities, noise, out=noise).argmax(dim=-1)
        self._recent[slots] = torch.cat([self._recent[slots][..., 1:], tokens[..., None]], dim=-1)
        self._num_drawn[slots] += 1
        return tokens.numpy()

    def _probabilities(self, logits: torch.Tensor, slots: list[int]) -> torch.Tensor:
        scores = logits / self._temperature[slots][..., None]
        scores = self._penalize_repeats(scores, slots)
        scores = self._keep_likely(scores, slots)
        # Unlike upstream: a sequence cannot end before its first step, so audio is never empty.
        scores[self._num_drawn[slots] == 0, :, self.end_token] = _NEVER
        return torch.softmax(scores, dim=-1)

    def _penalize_repeats(self, scores: torch.Tensor, slots: list[int]) -> torch.Tensor:
        recent = self._recent[slots]
        counts = torch.zeros((*scores.shape[:2], self._vocabulary_size + 1), dtype=torch.int64)
        counts.scatter_add_(-1, recent, torch.ones_like(recent))
        penalty = self._penalties[slots].gather(-1, counts[..., : self._vocabulary_size])
        return torch.where(scores < 0, scores * penalty, scores / penalty)

    def _keep_likely(self, scores: torch.Tensor, slots: list[int]) -> torch.Tensor:
        """Top-p and top-k: tokens outside are never drawn; those that equal the last one stay."""
        # numpy sorts such short rows several times as fast as torch.
        ascending = torch.from_numpy(np.sort(scores.numpy(), axis=-1))
        below = ascending.softmax(dim=-1).cumsum(dim=-1) <= self._tail[slots][..., None]
        first_by_p = below.sum(dim=-1).clamp(max=self._vocabulary_size - MIN_CANDIDATES)
        first_by_k = self._vocabulary_size - self._top_k[slots]
        least = ascending.gather(-1, torch.maximum(first_by_p, first_by_k)[..., None])
        return scores.masked_fill(scores < least, _NEVER)


def use_one_torch_thread() -> None:
    """Keep torch from starting a pool of its own in this process."""
    torch.set_num_threads(1)
