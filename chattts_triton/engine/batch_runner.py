"""Takes sequences through model and samplers; what fails here fails the sequences concerned."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chattts_triton.config import SHORTEST_PREFILL
from chattts_triton.engine.model_runner import Floats, ModelRunner
from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.sequence import Sequence, Stage
from chattts_triton.errors import GenerationError

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """What one sequence drew at one step."""

    tokens: npt.NDArray[np.int64]  # (num_vq,) codes or (1,) text id
    hidden: Floats  # (hidden,), what they were drawn from
    is_end: bool  # the end token is among them


class BatchRunner:
    """The engine's arithmetic: a prompt, a pass over the batch, a draw. Not thread-safe.

    Holds no sequences: the caller says which ones there are, and acts on what comes out.
    """

    def __init__(self, runner: ModelRunner, samplers: Mapping[Stage, Sampler]) -> None:
        self._runner = runner
        self._samplers = samplers

    @property
    def max_len(self) -> int:
        """Positions of a KV slot."""
        return self._runner.kv_cache.max_len

    def prefill(
        self, slot: int, sequence: Sequence, most: int | None = None
    ) -> Step | GenerationError | None:
        """Fill a slot with a sequence's prompt and draw its first step.

        Args:
            slot: The sequence's.
            sequence: What begins, or has begun.
            most: Positions to run at once; None for all that are left.

        Returns:
            The step, what failed, or None where a part of the prompt is left.
        """
        start, end = sequence.num_prefilled, sequence.num_prompt_tokens
        if most and self._runner.may_cut_prompts and end - start >= most + SHORTEST_PREFILL:
            end = start + most
        try:
            if start == 0:
                self._samplers[sequence.stage].start(slot, sequence.params)
            embeds = self._runner.embed_prompt(
                sequence.text_ids, sequence.speaker_embedding, sequence.prompt_codes
            )
            logits, hiddens = self._runner.prefill(slot, embeds[start:end], start)
        except Exception as error:
            LOGGER.exception("request %s: prefill failed", sequence.request_id)
            return failure(error)
        sequence.num_prefilled = end
        if not sequence.is_prefilled:
            return None
        return self.draw([sequence], [slot], logits, hiddens)[0]

    def decode(self, running: list[Sequence], num_cached_behind: int = 0) -> tuple[Floats, Floats]:
        """Run one pass over the newest tokens of the sequences in the first slots.

        The slot behind these holds so many positions of a prompt that is being run.

        It writes each slot's next position in place and draws nothing, so it may be called again
        after a failure, for all of them or for fewer.

        Returns:
            Code logits (B, num_vq, V) and hidden states (B, hidden), valid until the next pass.

        Raises:
            Exception: Whatever the model fails with.
        """
        embeds = np.empty((len(running), self._runner.dims.hidden_size), dtype=np.float32)
        for stage, rows in _rows_by_stage(running):
            tokens = np.stack([running[row].last_tokens for row in rows])
            is_code = stage is Stage.CODE
            embed = self._runner.embed_codes if is_code else self._runner.embed_text
            embeds[rows] = embed(tokens if is_code else tokens[:, 0])
        num_cached = np.asarray([sequence.num_cached for sequence in running], dtype=np.int32)
        return self._runner.decode(embeds, num_cached, num_cached_behind)

    def draw(
        self, sequences: list[Sequence], slots: list[int], code_logits: Floats, hiddens: Floats
    ) -> list[Step | GenerationError]:
        """Draw a step of each sequence, or say why it has none.

        Args:
            sequences: B of them; row i of all else belongs to `sequences[i]`.
            slots: Their slots.
            code_logits: (B, num_vq, V) float32.
            hiddens: (B, hidden) float32.
        """
        drawn: dict[int, Step | GenerationError | None] = {}
        for stage, rows in _rows_by_stage(sequences):
            is_code = stage is Stage.CODE
            try:
                logits = code_logits[rows] if is_code else self._runner.text_logits(hiddens[rows])
                steps = self._draw_stage(stage, [slots[row] for row in rows], logits, hiddens[rows])
            except Exception as error:
                # The generators may have moved on, so none of the stage can try again.
                LOGGER.exception("drawing the %s of %d sequences failed", stage.value, len(rows))
                steps = [failure(error)] * len(rows)
            drawn |= zip(rows, steps, strict=True)
        return [
            drawn[row] or GenerationError(f"logits are not finite at step {sequence.num_steps}")
            for row, sequence in enumerate(sequences)
        ]

    def _draw_stage(
        self, stage: Stage, slots: list[int], logits: Floats, hiddens: Floats
    ) -> list[Step | GenerationError | None]:
        """A step for each row, None where its logits are not finite."""
        is_finite = np.isfinite(logits).all(axis=(1, 2))
        sampler = self._samplers[stage]
        tokens = sampler.sample(logits, slots)
        is_end = (tokens == sampler.end_token).any(axis=1)
        return [
            Step(tokens[i], hiddens[i].copy(), bool(is_end[i])) if is_finite[i] else None
            for i in range(len(slots))
        ]

    def rest(self) -> None:
        """Give back what idle slots take."""
        self._runner.kv_cache.give_back()

    def move(self, source: int, target: int, mover: Sequence) -> None:
        """Let a sequence go on in another slot."""
        self._runner.kv_cache.move(source, target, mover.num_cached)
        self._samplers[mover.stage].move(source, target)


def failure(error: Exception) -> GenerationError:
    """What a sequence ends with when its step failed.

    A new error, since a caught one keeps the frames, and so the arrays, that it went through.
    """
    if isinstance(error, GenerationError):
        return GenerationError(str(error))
    return GenerationError(f"step failed: {error!r}")


def _rows_by_stage(sequences: Iterable[Sequence]) -> list[tuple[Stage, list[int]]]:
    by_stage: dict[Stage, list[int]] = {}
    for row, sequence in enumerate(sequences):
        by_stage.setdefault(sequence.stage, []).append(row)
    return list(by_stage.items())
