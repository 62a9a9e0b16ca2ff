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

_NEVER = np.float32(-np.inf)

Floats = npt.NDArray[np.float32]


class Sampler:
    """State of the sampling of each slot: options, generator, recent tokens. Not thread-safe.

    Serves one vocabulary: `num_heads` tokens of it are drawn at every step (the codebooks of
    audio, or one head of text), and `end_token` in any of them ends a sequence.

    torch draws and takes the exponentials, whose bits are its own; NumPy, whose calls cost less,
    does what has the same bits everywhere.

    Source:
        2noise/ChatTTS@1092c1f ChatTTS/model/{gpt,processors}.py, behaviour only.
    """

    def __init__(
        self, *, num_heads: int, vocabulary_size: int, end_token: int, max_num_seqs: int
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self.end_token = end_token
        self._temperature = np.ones((max_num_seqs, 1, 1), dtype=np.float32)
        # 1 - top_p: the share of probability to leave out
        self._tail = np.ones((max_num_seqs, 1, 1), dtype=np.float32)
        self._top_k = np.ones((max_num_seqs, 1), dtype=np.int64)
        # penalty ** n for every n that the window allows.
        self._penalties = np.ones((max_num_seqs, REPETITION_WINDOW_CODES + 1), dtype=np.float32)
        # The last tokens of each head; where there are none yet, one that does not exist.
        self._recent = np.full(
            (max_num_seqs, num_heads, REPETITION_WINDOW_CODES), vocabulary_size, dtype=np.int64
        )
        self._num_drawn = np.zeros(max_num_seqs, dtype=np.int64)
        self._generators = [torch.Generator() for _ in range(max_num_seqs)]
        self._noise = torch.empty((max_num_seqs, num_heads, vocabulary_size))

    def start(self, slot: int, params: SamplingParams) -> None:
        """Begin a sequence in a slot, its generator fresh from its seed."""
        self._temperature[slot] = params.temperature
        self._tail[slot] = 1.0 - params.top_p
        self._top_k[slot] = min(max(params.top_k, MIN_CANDIDATES), self._vocabulary_size)
        counts = torch.arange(REPETITION_WINDOW_CODES + 1)
        self._penalties[slot] = torch.pow(params.repetition_penalty, counts).numpy()
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
        probabilities = self._probabilities(logits, slots)
        # torch.multinomial on the CPU draws in just this way, but from one generator for all rows.
        noise = self._noise[: len(slots)]
        for row, slot in zip(noise, slots, strict=True):
            row.exponential_(generator=self._generators[slot])
        with np.errstate(divide="ignore", invalid="ignore"):  # the noise may be 0
            tokens: npt.NDArray[np.int64] = (probabilities / noise.numpy()).argmax(axis=-1)
        recent = self._recent[slots]
        recent[..., :-1] = recent[..., 1:]
        recent[..., -1] = tokens
        self._recent[slots] = recent
        self._num_drawn[slots] += 1
        return tokens

    def _probabilities(self, logits: Floats, slots: list[int]) -> Floats:
        scores = logits / self._temperature[slots]
        self._penalize_repeats(scores, slots)
        self._keep_likely(scores, slots)
        # Unlike upstream: a sequence cannot end before its first step, so audio is never empty.
        scores[self._num_drawn[slots] == 0, :, self.end_token] = _NEVER
        return softmax(scores)

    def _penalize_repeats(self, scores: Floats, slots: list[int]) -> None:
        recent = self._recent[slots]
        counts = (recent[..., None] == recent[..., None, :]).sum(axis=-1)
        rows, heads, places = np.nonzero(recent < self._vocabulary_size)
        tokens = recent[rows, heads, places]
        repeated = scores[rows, heads, tokens]
        penalty = self._penalties[slots][rows, counts[rows, heads, places]]
        # A token that is there twice is written twice, with the same score.
        scores[rows, heads, tokens] = np.where(repeated < 0, repeated * penalty, repeated / penalty)

    def _keep_likely(self, scores: Floats, slots: list[int]) -> None:
        """Top-p and top-k: tokens outside are never drawn; those that equal the last one stay."""
        ascending = np.sort(scores, axis=-1)
        below = torch.from_numpy(softmax(ascending)).cumsum(dim=-1).numpy() <= self._tail[slots]
        first_by_p = np.minimum(below.sum(axis=-1), self._vocabulary_size - MIN_CANDIDATES)
        first = np.maximum(first_by_p, self._vocabulary_size - self._top_k[slots])
        least = np.take_along_axis(ascending, first[..., None], axis=-1)
        scores[scores < least] = _NEVER


def softmax(scores: Floats) -> Floats:
    """Over the last axis, as torch rounds it."""
    probabilities: Floats = torch.from_numpy(scores).softmax(dim=-1).numpy()
    return probabilities


def use_one_torch_thread() -> None:
    """Keep torch from starting a pool of its own in this process."""
    torch.set_num_threads(1)
