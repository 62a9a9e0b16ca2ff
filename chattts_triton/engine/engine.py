"""The continuous batching loop: admits, prefills, decodes, samples and ends sequences."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig
from chattts_triton.engine.model_runner import Floats, ModelRunner
from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.scheduler import Scheduler
from chattts_triton.engine.sequence import FinishReason, Sequence
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
)

LOGGER = logging.getLogger(__name__)


class Engine:
    """Owns the model and one thread that loops over `step`.

    `add_request` and `abort` may be called from any thread. Every sequence that was added ends
    with exactly one call of its `on_finished`, whatever happens.
    """

    def __init__(self, runner: ModelRunner, sampler: Sampler, config: EngineConfig) -> None:
        self._runner = runner
        self._sampler = sampler
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

    def add_request(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request: all of them, or none.

        Raises:
            InvalidRequestError: A prompt does not fit into a KV slot with the steps it may take.
            OverloadedError: The waiting queue is full, or the engine is stopping.
        """
        for sequence in sequences:
            longest = MAX_MODEL_LEN - sequence.params.max_new_codes
            if not 0 < sequence.num_text_ids <= longest:
                raise InvalidRequestError.of(
                    "TEXT_IDS", sequence.num_text_ids, f"1 to {longest} ids"
                )
        with self._changed:
            if self._is_stopping:
                raise OverloadedError("the server is stopping")
            self._scheduler.add(sequences)
            self._changed.notify()

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
            self._decode(list(self._scheduler.running))

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
                self._changed.wait_for(lambda: self._is_stopping or bool(scheduler.waiting))
                self._wait_for_company()
            return not self._is_stopping

    def _wait_for_company(self) -> None:
        if self._queue_delay_s and not self._is_stopping:
            self._changed.wait_for(lambda: self._is_stopping, timeout=self._queue_delay_s)

    def _prefill(self, sequence: Sequence) -> None:
        slot = len(self._scheduler.running) - 1
        sequence.first_step_s = time.monotonic()
        self._sampler.start(slot, sequence.params)
        try:
            logits, hidden = self._runner.prefill(
                slot, sequence.text_ids, sequence.speaker_embedding
            )
        except GenerationError as error:
            self._end(slot, FinishReason.ABORT, error)
            return
        self._draw([sequence], logits[None], hidden[None], first_slot=slot)

    def _decode(self, sequences: list[Sequence]) -> None:
        codes = np.stack([sequence.last_codes for sequence in sequences])
        num_cached = np.asarray([s.num_cached for s in sequences], dtype=np.int32)
        logits, hiddens = self._runner.decode(codes, num_cached)
        self.num_steps += 1
        self.num_sequence_steps += len(sequences)
        self._draw(sequences, logits, hiddens)

    def _draw(
        self, sequences: list[Sequence], logits: Floats, hiddens: Floats, first_slot: int = 0
    ) -> None:
        is_finite = np.isfinite(logits).all(axis=(1, 2))
        codes = self._sampler.sample(logits, first_slot)
        # From the last slot down, so that what moves into a freed slot has been dealt with.
        for row in reversed(range(len(sequences))):
            sequence, slot = sequences[row], first_slot + row
            if not is_finite[row]:
                error = GenerationError(f"logits are not finite at step {sequence.num_codes}")
                self._end(slot, FinishReason.ABORT, error)
            elif (codes[row] == self._runner.dims.eos_code).any():
                self._end(slot, FinishReason.STOP)
            else:
                sequence.append(codes[row], hiddens[row].copy())
                if sequence.num_codes == sequence.params.max_new_codes:
                    self._end(slot, FinishReason.LENGTH)

    def _end(self, slot: int, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        sequence = self._scheduler.running[slot]
        with self._changed:
            source = self._scheduler.remove(slot)
        if source is not None:
            mover = self._scheduler.running[slot]
            self._runner.kv_cache.move(source, slot, mover.num_cached)
            self._sampler.move(source, slot)
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
        return RequestCancelledError(f"cancelled after {sequence.num_codes} steps")
    if sequence.deadline_s is not None and now_s >= sequence.deadline_s:
        limit_ms = round((sequence.deadline_s - sequence.arrival_s) * 1000)
        return DeadlineExceededError(
            f"deadline of {limit_ms} ms exceeded after {sequence.num_codes} steps"
        )
    return None
