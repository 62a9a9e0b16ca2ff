"""The `gpt` member: hands a request's rows to the engine and answers when all have ended."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from typing import Any

import numpy as np

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig, num_threads, read_config
from chattts_triton.engine.engine import Engine
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import Sampler, use_one_torch_thread
from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import ChatTTSError, InvalidRequestError, RequestCancelledError
from chattts_triton.manifest import Dims
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.edge import (
    ModelArgs,
    Tensors,
    TritonEdge,
    check_lengths,
    column,
    pad_rows,
)

LOGGER = logging.getLogger(__name__)
_WARM_UP_IDS = 16


class PendingRequest:
    """One Triton request whose rows are in the engine."""

    def __init__(self, request: Any, sender: Any, request_id: str) -> None:
        self.request = request
        self.sender = sender
        self.request_id = request_id
        self.sequences: list[Sequence] = []
        self.num_open = 0  # rows that have not ended; only the engine's thread counts it down

    @property
    def error(self) -> ChatTTSError | None:
        """Why the request failed: the error that came first, not the cancellations it caused."""
        errors = [sequence.error for sequence in self.sequences if sequence.error]
        causes = [error for error in errors if not isinstance(error, RequestCancelledError)]
        return next(iter(causes or errors), None)

    def outputs(self) -> Tensors:
        """The tensors of a request all of whose rows have ended well."""
        reasons = [s.finish_reason.value for s in self.sequences if s.finish_reason]
        return {
            "HIDDENS": pad_rows([sequence.hiddens for sequence in self.sequences]),
            "CODES": pad_rows([sequence.codes.astype(np.int32) for sequence in self.sequences]),
            "NUM_CODES": column([sequence.num_codes for sequence in self.sequences], np.int32),
            "FINISH_REASON": column([reason.encode() for reason in reasons], np.object_),
        }


class GptModel:
    """The engine behind Triton's request objects.

    `accept` is called by Triton's thread, rows end on the engine's thread, and responses leave on
    a third one, so that a slow send never holds a step up.
    """

    def __init__(self, edge: TritonEdge, args: ModelArgs) -> None:
        self._edge = edge
        manifest, directory = args.load_manifest()
        self._dims = manifest.dims
        config = read_config(EngineConfig, args.parameters)
        use_one_torch_thread()  # sampling is too small to share, and the cores are the session's
        runner = ModelRunner(
            manifest,
            directory,
            max_num_seqs=config.max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
            threads=num_threads(config.threads),
            exact_batching=config.exact_batching,
            on_gpu=args.on_gpu,
        )
        _warm_up(runner)
        self._engine = Engine(runner, Sampler(manifest.dims, config.max_num_seqs), config)
        self._finished: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._responder = threading.Thread(target=self._respond, name="responder", daemon=True)
        self._ids = itertools.count()
        self._engine.start()
        self._responder.start()

    def accept(self, request: Any) -> None:
        """Queue a request; its one response follows later, or at once if it is refused."""
        # The caller's request id may be empty or used twice, so the engine is given another.
        request_id = f"{next(self._ids)}:{request.request_id()}"
        pending = PendingRequest(request, request.get_response_sender(), request_id)
        try:
            self._add_sequences(pending)
            self._engine.add_request(pending.sequences)
        except Exception as error:  # noqa: BLE001 - every request must be answered
            self._send(pending, self._edge.error_response(error))

    def close(self) -> None:
        """Cancel what still runs, answer it, and end both threads."""
        self._engine.stop()
        self._finished.put(None)
        self._responder.join()

    def _add_sequences(self, pending: PendingRequest) -> None:
        inputs = self._edge.tensors(pending.request)
        _check(inputs, self._dims)
        timeout_us = pending.request.timeout()
        deadline_s = time.monotonic() + timeout_us / 1e6 if timeout_us else None
        for row, length in enumerate(inputs["NUM_TEXT_IDS"][:, 0]):
            pending.sequences.append(
                Sequence(
                    pending.request_id,
                    inputs["TEXT_IDS"][row, :length],
                    inputs["SPEAKER_EMBEDDING"][row],
                    _sampling_params(inputs, row),
                    lambda sequence: self._on_finished(pending, sequence),
                    deadline_s=deadline_s,
                )
            )
        pending.num_open = len(pending.sequences)

    def _on_finished(self, pending: PendingRequest, sequence: Sequence) -> None:
        pending.num_open -= 1
        if pending.num_open == 0:
            self._finished.put(pending)
        elif sequence.error:
            self._engine.abort(pending.request_id)

    def _respond(self) -> None:
        while (pending := self._finished.get()) is not None:
            try:
                if pending.error:
                    response = self._edge.error_response(pending.error)
                else:
                    response = self._edge.response(pending.request, pending.outputs())
            except Exception as error:  # noqa: BLE001 - every request must be answered
                response = self._edge.error_response(error)
            self._send(pending, response)

    def _send(self, pending: PendingRequest, response: Any) -> None:
        try:
            pending.sender.send(response, flags=self._edge.final_flag)
        except Exception:
            LOGGER.exception("request %s: its response could not be sent", pending.request_id)


def _check(inputs: Tensors, dims: Dims) -> None:
    """Refuse a prompt that would fail inside a step, and take its neighbours along.

    Raises:
        InvalidRequestError: A length, an id or the width of a speaker vector is out of range.
    """
    text_ids = inputs["TEXT_IDS"]
    check_lengths("NUM_TEXT_IDS", inputs["NUM_TEXT_IDS"], text_ids.shape[1])
    wrong = text_ids[(text_ids < 0) | (text_ids >= dims.num_text_tokens)]
    if wrong.size:
        raise InvalidRequestError.of("TEXT_IDS", int(wrong[0]), f"0 to {dims.num_text_tokens - 1}")
    width = inputs["SPEAKER_EMBEDDING"].shape[1]
    if width != dims.hidden_size:
        raise InvalidRequestError.of("SPEAKER_EMBEDDING", width, f"{dims.hidden_size} values")


def _sampling_params(inputs: Tensors, row: int) -> SamplingParams:
    return SamplingParams(
        seed=int(inputs["SEED"][row, 0]),
        max_new_codes=int(inputs["MAX_NEW_CODES"][row, 0]),
        temperature=float(inputs["TEMPERATURE"][row, 0]),
        top_p=float(inputs["TOP_P"][row, 0]),
        top_k=int(inputs["TOP_K"][row, 0]),
        repetition_penalty=float(inputs["REPETITION_PENALTY"][row, 0]),
    )


def _warm_up(runner: ModelRunner) -> None:
    """Pay for memory, thread start-up and kernel choice before the first request."""
    ids = np.zeros(_WARM_UP_IDS, dtype=np.int32)
    runner.prefill(0, ids, np.zeros(runner.dims.hidden_size, dtype=np.float32))
    codes = np.zeros((1, runner.dims.num_vq), dtype=np.int64)
    runner.decode(codes, np.asarray([_WARM_UP_IDS], dtype=np.int32))
