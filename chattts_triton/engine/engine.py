"""The continuous batching loop: admits, steps and ends sequences, whichever thread adds them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from chattts_triton.config import EngineConfig
from chattts_triton.engine.batch_runner import BatchRunner, Step, failure
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import Sampler
from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.engine.shared_scheduler import STOPPING, SharedScheduler
from chattts_triton.engine.stats import EngineStats
from chattts_triton.errors import (
    ChatTTSError,
    GenerationError,
    InvalidRequestError,
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

    Any thread may add sequences, abort them, and read the numbers and `stats`. Every sequence
    that was added ends with exactly one call of its `on_finished`, whatever happens.
    """

    def __init__(
        self, runner: ModelRunner, samplers: Mapping[Stage, Sampler], config: EngineConfig
    ) -> None:
        self._batch = BatchRunner(runner, samplers)
        self._scheduler = SharedScheduler(config)
        self._prefill_chunk = config.prefill_chunk or None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self.stats = EngineStats()

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop; sequences still in it are cancelled."""
        self._scheduler.stop()
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
        self._scheduler.add(sequences)

    def continue_request(self, sequence: Sequence) -> None:
        """Queue a further sequence of a request that was accepted, before all newcomers.

        A full queue does not refuse it. One that does not fit into a KV slot, or comes while the
        engine is stopping, ends at once, on the caller's thread.
        """
        try:
            self._check_length(sequence)
        except InvalidRequestError as error:
            sequence.finish(FinishReason.ABORT, error)
            return
        if not self._scheduler.add_first(sequence):
            sequence.finish(FinishReason.ABORT, RequestCancelledError(STOPPING))

    def abort(self, request_id: str) -> None:
        """Cancel a request's sequences, waiting or running, before the next step.

        It concerns what has been added so far; a request that is not there is none.
        """
        self._scheduler.abort(request_id)

    @property
    def num_running(self) -> int:
        """Slots in use."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return self._scheduler.num_waiting

    @property
    def num_running_requests(self) -> int:
        """Requests with at least one sequence in a slot."""
        running, _ = self._scheduler.request_ids()
        return len(running)

    @property
    def num_waiting_requests(self) -> int:
        """Requests all of whose sequences wait for a slot."""
        running, waiting = self._scheduler.request_ids()
        return len(waiting - running)

    def step(self) -> None:
        """Drop what was cancelled or is too late, prefill one newcomer, decode all that run."""
        try:
            self._end_overdue(self._scheduler.begin_step())
            newcomer = self._scheduler.schedule()
            if newcomer:
                self._prefill(newcomer)
            self._decode()
            if not self._scheduler.running:
                self._batch.rest()
        finally:
            self._scheduler.end_step()

    def _check_length(self, sequence: Sequence) -> None:
        longest = self._batch.max_len - sequence.params.max_new_codes
        if not 0 < sequence.num_prompt_tokens <= longest:
            raise InvalidRequestError.of(
                "TEXT_IDS", sequence.num_prompt_tokens, f"a prompt of 1 to {longest} tokens"
            )

    def _loop(self) -> None:
        while self._scheduler.wait_for_work():
            try:
                self.step()
            except Exception as error:  # whatever it is, no sequence may hang
                LOGGER.exception("step failed, ending %d sequences", self.num_running)
                self._end_running(failure(error))
        self._end_all(RequestCancelledError(STOPPING))

    def _end_overdue(self, overdue: dict[Sequence, ChatTTSError]) -> None:
        for sequence, error in overdue.items():
            if sequence.first_step_s is None:  # it never had a slot
                sequence.finish(FinishReason.ABORT, error)
        for slot in reversed(range(self.num_running)):
            reason = overdue.get(self._scheduler.running[slot])
            if reason:
                self._end(slot, FinishReason.ABORT, reason)

    def _prefill(self, sequence: Sequence) -> None:
        """Run a prompt, or only a piece of it where others would wait for the whole."""
        slot = self.num_running - 1
        if sequence.first_step_s is None:
            sequence.first_step_s = time.monotonic()
            self.stats.add_queue_time(sequence.first_step_s - sequence.arrival_s)
        most = self._prefill_chunk if self._decoding() else None
        drawn = self._batch.prefill(slot, sequence, most)
        if drawn:
            self._take(slot, drawn)

    def _decode(self) -> None:
        """Decode all that run, or as many of them as the model can.

        What a pass lacks is memory, as a rule. So one that fails is tried again without the
        sequence that came last, which ends with the error.
        """
        while running := self._decoding():
            began_s = time.perf_counter()
            try:
                behind = self._scheduler.prefilling
                num_cached_behind = behind.num_cached if behind else 0
                logits, hiddens = self._batch.decode(running, num_cached_behind)
            except Exception as error:
                LOGGER.exception("a step of %d sequences failed, ending the newest", len(running))
                self._end(self._newest_slot(), FinishReason.ABORT, failure(error))
                continue
            slots = list(range(len(running)))
            drawn = self._batch.draw(running, slots, logits, hiddens)
            # From the last slot down, so that what moves into a freed slot has been dealt with.
            for slot in reversed(slots):
                self._take(slot, drawn[slot])
            self.stats.add_step(len(slots), time.perf_counter() - began_s)
            return

    def _decoding(self) -> list[Sequence]:
        """Those of the first slots, whose prompts have been run."""
        running = self._scheduler.running
        return running[:-1] if self._scheduler.prefilling else list(running)

    def _newest_slot(self) -> int:
        running = self._decoding()
        return max(range(len(running)), key=lambda slot: (running[slot].first_step_s or 0.0, slot))

    def _take(self, slot: int, drawn: Step | GenerationError) -> None:
        sequence = self._scheduler.running[slot]
        if isinstance(drawn, GenerationError):
            self._end(slot, FinishReason.ABORT, drawn)
        elif drawn.is_end:
            self._end(slot, FinishReason.STOP)
        else:
            sequence.append(drawn.tokens, drawn.hidden)
            if sequence.num_steps == sequence.params.max_new_codes:
                self._end(slot, FinishReason.LENGTH)

    def _end(self, slot: int, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        sequence = self._scheduler.running[slot]
        moves = self._scheduler.remove(slot)
        try:
            for source, target in moves:
                self._batch.move(source, target, self._scheduler.running[target])
        finally:
            sequence.finish(reason, error)

    def _end_running(self, error: ChatTTSError) -> None:
        for slot in reversed(range(self.num_running)):
            self._end(slot, FinishReason.ABORT, error)

    def _end_all(self, error: ChatTTSError) -> None:
        self._end_running(error)
        for sequence in self._scheduler.take_waiting():
            sequence.finish(FinishReason.ABORT, error)
