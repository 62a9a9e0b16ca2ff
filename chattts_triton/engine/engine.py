"""The continuous batching loop: admits, prefills, decodes, samples and ends sequences."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from chattts_triton.config import EngineConfig
from chattts_triton.engine.model_runner import Floats, ModelRunner
from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.scheduler import Scheduler
from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
)
from chattts_triton.manifest import Manifest

LOGGER = logging.getLogger(__name__)
TEXT_END = "[Ebreak]"  # the token that ends a refined text


def make_samplers(manifest: Manifest, max_num_seqs: int) -> dict[Stage, Sampler]:
    """One sampler for audio codes and one for text, each with a state for every slot."""
    dims = manifest.dims
    return {
        Stage.CODE: Sampler(
            num_heads=dims.num_vq,
            vocabulary_size=dims.num_audio_tokens,
            end_token=dims.eos_code,
            max_num_seqs=max_num_seqs,
        ),
        Stage.TEXT: Sampler(
            num_heads=1,
            vocabulary_size=dims.num_text_tokens,
            end_token=manifest.special_ids[TEXT_END],
            max_num_seqs=max_num_seqs,
        ),
    }


class Engine:
    """Owns the model and one thread that loops over `step`.

    `add_request` and `abort` may be called from any thread. Every sequence that was added ends
    with exactly one call of its `on_finished`, whatever happens.
    """

    def __init__(
        self, runner: ModelRunner, samplers: Mapping[Stage, Sampler], config: EngineConfig
    ) -> None:
        self._runner = runner
        self._samplers = samplers
        self._scheduler = Scheduler(config.max_num_seqs, config.max_waiting)
        self._queue_delay_s = config.max_queue_delay_us / 1e6
        self._changed = threading.Condition()
        self._aborted: set[str] = set()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self.num_steps = 0  # decode steps run so far
        self.num_sequence_steps = 0  # the same, counted once for each sequence in the batch

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop; sequences still in it are cancelled."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def check_capacity(self, num_sequences: int) -> None:
        """Refuse so many sequences in one request if they can never fit.

        Raises:
            InvalidRequestError: There are more than queue and slots hold together.
        """
        self._scheduler.check_capacity(num_sequences)

    def add_request(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request: all of them, or none.

        Raises:
            InvalidRequestError: A prompt does not fit into a KV slot with the steps it may take,
                or there are more sequences than queue and slots hold together.
            OverloadedError: The waiting queue is full, or the engine is stopping.
        """
        for sequence in sequences:
            self._check_length(sequence)
        with self._changed:
            if self._is_stopping:
                raise OverloadedError("the server is stopping")
            self._scheduler.add(sequences)
            self._changed.notify()

    def continue_request(self, sequence: Sequence) -> None:
        """Queue what follows from a sequence that has just ended, before all that waits.

        It is part of a request that was accepted, so a full queue does not refuse it; one that
        does not fit into a KV slot ends at once. For the engine's thread only, from within
        `on_finished`.
        """
        try:
            self._check_length(sequence)
        except InvalidRequestError as error:
            sequence.finish(FinishReason.ABORT, error)
            return
        with self._changed:
            self._scheduler.waiting.appendleft(sequence)

    def abort(self, request_id: str) -> None:
        """Cancel a request's sequences, waiting or running, before the next step."""
        with self._changed:
            self._aborted.add(request_id)
            self._changed.notify()

    @property
    def num_running(self) -> int:
        """Slots in use."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._scheduler.waiting)

    def step(self) -> None:
        """Drop what was cancelled or is too late, prefill one newcomer, decode all that run."""
        self._end_overdue()
        with self._changed:
            admitted = self._scheduler.schedule()
        if admitted:
            self._prefill(admitted)
        if self._scheduler.running:
            self._decode()

    def _check_length(self, sequence: Sequence) -> None:
        longest = self._runner.kv_cache.max_len - sequence.params.max_new_codes
        if not 0 < sequence.num_prompt_tokens <= longest:
            raise InvalidRequestError.of(
                "TEXT_IDS", sequence.num_prompt_tokens, f"a prompt of 1 to {longest} tokens"
            )

    def _loop(self) -> None:
        while self._wait_for_work():
            try:
                self.step()
            except Exception as error:  # whatever it is, no sequence may hang
                LOGGER.exception("step failed, ending %d sequences", self.num_running)
                self._fail_all(error)
        self._end_all(RequestCancelledError("the server is stopping"))

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False once the engine is to stop."""
        with self._changed:
            scheduler = self._scheduler
            if not scheduler.running:
                was_idle = not scheduler.waiting
                self._changed.wait_for(lambda: self._is_stopping or bool(scheduler.waiting))
                if was_idle:
                    self._wait_for_company()
            return not self._is_stopping

    def _wait_for_company(self) -> None:
        if self._queue_delay_s and not self._is_stopping:
            self._changed.wait_for(lambda: self._is_stopping, timeout=self._queue_delay_s)

    def _prefill(self, sequence: Sequence) -> None:
        slot = len(self._scheduler.running) - 1
        sequence.first_step_s = time.monotonic()
        self._samplers[sequence.stage].start(slot, sequence.params)
        embeds = self._runner.embed_prompt(
            sequence.text_ids, sequence.speaker_embedding, sequence.prompt_codes
        )
        try:
            logits, hiddens = self._runner.prefill(slot, embeds)
        except GenerationError as error:
            self._end(slot, FinishReason.ABORT, error)
            return
        self._draw([slot], logits, hiddens)

    def _decode(self) -> None:
        running = self._scheduler.running
        embeds = np.empty((len(running), self._runner.dims.hidden_size), dtype=np.float32)
        for stage, slots in self._slots_by_stage(range(len(running))):
            tokens = np.stack([running[slot].last_tokens for slot in slots])
            is_code = stage is Stage.CODE
            embed = self._runner.embed_codes if is_code else self._runner.embed_text
            embeds[slots] = embed(tokens if is_code else tokens[:, 0])
        num_cached = np.asarray([sequence.num_cached for sequence in running], dtype=np.int32)
        logits, hiddens = self._runner.decode(embeds, num_cached)
        self.num_steps += 1
        self.num_sequence_steps += len(running)
        self._draw(list(range(len(running))), logits, hiddens)

    def _draw(self, slots: list[int], code_logits: Floats, hiddens: Floats) -> None:
        """Draw a step of the given slots; row i of the arrays belongs to `slots[i]`."""
        drawn: dict[int, npt.NDArray[np.int64] | None] = {}
        for stage, stage_slots in self._slots_by_stage(slots):
            rows = [slots.index(slot) for slot in stage_slots]
            is_code = stage is Stage.CODE
            logits = code_logits[rows] if is_code else self._runner.text_logits(hiddens[rows])
            is_finite = np.isfinite(logits).all(axis=(1, 2))
            tokens = self._samplers[stage].sample(logits, stage_slots)
            for slot, row_tokens, is_good in zip(stage_slots, tokens, is_finite, strict=True):
                drawn[slot] = row_tokens if is_good else None
        # From the last slot down, so that what moves into a freed slot has been dealt with.
        for row, slot in reversed(list(enumerate(slots))):
            self._take(slot, drawn[slot], hiddens[row])

    def _take(self, slot: int, tokens: npt.NDArray[np.int64] | None, hidden: Floats) -> None:
        sequence = self._scheduler.running[slot]
        if tokens is None:
            error = GenerationError(f"logits are not finite at step {sequence.num_steps}")
            self._end(slot, FinishReason.ABORT, error)
        elif (tokens == self._samplers[sequence.stage].end_token).any():
            self._end(slot, FinishReason.STOP)
        else:
            sequence.append(tokens, hidden.copy())
            if sequence.num_steps == sequence.params.max_new_codes:
                self._end(slot, FinishReason.LENGTH)

    def _slots_by_stage(self, slots: Iterable[int]) -> list[tuple[Stage, list[int]]]:
        by_stage: dict[Stage, list[int]] = {}
        for slot in slots:
            by_stage.setdefault(self._scheduler.running[slot].stage, []).append(slot)
        return list(by_stage.items())

    def _end(self, slot: int, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        sequence = self._scheduler.running[slot]
        with self._changed:
            source = self._scheduler.remove(slot)
        if source is not None:
            mover = self._scheduler.running[slot]
            self._runner.kv_cache.move(source, slot, mover.num_cached)
            self._samplers[mover.stage].move(source, slot)
        sequence.finish(reason, error)

    def _end_overdue(self) -> None:
        with self._changed:
            aborted, self._aborted = self._aborted, set()
            waiting = list(self._scheduler.waiting)
        now_s = time.monotonic()
        for slot in reversed(range(self.num_running)):
            error = _reason_to_end(self._scheduler.running[slot], aborted, now_s)
            if error:
                self._end(slot, FinishReason.ABORT, error)
        for sequence in waiting:
            error = _reason_to_end(sequence, aborted, now_s)
            if error:
                with self._changed:
                    self._scheduler.waiting.remove(sequence)
                sequence.finish(FinishReason.ABORT, error)

    def _fail_all(self, error: Exception) -> None:
        self._end_running(GenerationError(f"step failed: {error}"))

    def _end_running(self, error: ChatTTSError) -> None:
        for slot in reversed(range(self.num_running)):
            self._end(slot, FinishReason.ABORT, error)

    def _end_all(self, error: ChatTTSError) -> None:
        self._end_running(error)
        with self._changed:
            waiting = list(self._scheduler.waiting)
            self._scheduler.waiting.clear()
        for sequence in waiting:
            sequence.finish(FinishReason.ABORT, error)


def _reason_to_end(sequence: Sequence, aborted: set[str], now_s: float) -> ChatTTSError | None:
    if sequence.request_id in aborted:
        return RequestCancelledError(f"cancelled after {sequence.num_steps} steps")
    if sequence.deadline and now_s >= sequence.deadline.at_s:
        limit_ms = round(sequence.deadline.timeout_s * 1000)
        return DeadlineExceededError(
            f"deadline of {limit_ms} ms exceeded after {sequence.num_steps} steps"
        )
    return None
