"""The `gpt` member: hands the texts of a request to the engine and answers when all have ended."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from typing import Any

import numpy as np

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig, num_threads, read_config
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import Deadline
from chattts_triton.errors import ChatTTSError, RequestCancelledError
from chattts_triton.serving.edge import (
    ModelArgs,
    Tensors,
    TritonEdge,
    check_call_size,
    column,
    pad_rows,
)
from chattts_triton.serving.prompt_reader import PromptReader
from chattts_triton.serving.utterance import Utterance
from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder

LOGGER = logging.getLogger(__name__)
_WARM_UP_IDS = 16


class PendingRequest:
    """One Triton request whose texts are in the engine."""

    def __init__(self, request: Any, sender: Any, request_id: str) -> None:
        self.request = request
        self.sender = sender
        self.request_id = request_id
        self.utterances: list[Utterance] = []

    @property
    def has_ended(self) -> bool:
        """Whether every text has."""
        return all(utterance.has_ended for utterance in self.utterances)

    @property
    def error(self) -> ChatTTSError | None:
        """Why the request failed: an error that is not the cancellation which another caused."""
        errors = [error for utterance in self.utterances for error in utterance.errors]
        causes = [error for error in errors if not isinstance(error, RequestCancelledError)]
        return next(iter(causes or errors), None)

    def outputs(self) -> Tensors:
        """The tensors of a request all of whose texts have ended well."""
        spoken = [
            [segment.codes for segment in utterance.segments if segment.codes]
            for utterance in self.utterances
        ]
        reasons = [utterance.finish_reason.value.encode() for utterance in self.utterances]
        refined = [utterance.refined_text.encode() for utterance in self.utterances]
        warnings = [utterance.warnings_json for utterance in self.utterances]
        return {
            "HIDDENS": pad_rows([np.concatenate([s.hiddens for s in row]) for row in spoken]),
            "CODES": pad_rows(
                [np.concatenate([s.tokens for s in row]).astype(np.int32) for row in spoken]
            ),
            "NUM_CODES": pad_rows([np.asarray([s.num_steps for s in r], np.int32) for r in spoken]),
            "FINISH_REASON": column(reasons, np.object_),
            "REFINED_TEXT": column(refined, np.object_),
            "WARNINGS": column(warnings, np.object_),
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
            max_model_len=min(MAX_MODEL_LEN, manifest.dims.max_position_embeddings),
            threads=num_threads(config.threads),
            exact_batching=config.exact_batching,
            on_gpu=args.on_gpu,
        )
        _warm_up(runner)
        self._engine = Engine(runner, make_samplers(manifest, config.max_num_seqs), config)
        tokenizer = manifest.member_directory(args.repository, "preprocess") / TOKENIZER_FILE
        self._encoder = PromptEncoder(tokenizer, manifest.special_ids)
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
            self._add_utterances(pending)
            self._engine.add_request(
                [s for utterance in pending.utterances for s in utterance.sequences()]
            )
        except Exception as error:  # noqa: BLE001 - every request must be answered
            self._send(pending, self._edge.error_response(error))

    def close(self) -> None:
        """Cancel what still runs, answer it, and end both threads."""
        self._engine.stop()
        self._finished.put(None)
        self._responder.join()

    def _add_utterances(self, pending: PendingRequest) -> None:
        inputs = self._edge.tensors(pending.request)
        self._engine.check_capacity(int(np.count_nonzero(inputs["NUM_TEXT_IDS"])))
        check_call_size("MAX_NEW_CODES", inputs["MAX_NEW_CODES"].sum(axis=1).tolist())
        timeout_us = pending.request.timeout()
        deadline = Deadline.after(timeout_us / 1e6) if timeout_us else None
        reader = PromptReader(inputs, self._dims)
        for row in range(len(inputs["TEXT_IDS"])):
            pending.utterances.append(
                Utterance(
                    reader.segments(row),
                    reader.prompting(row, pending.request_id, deadline),
                    reader.warnings(row),
                    self._encoder,
                    self._engine.continue_request,
                    lambda utterance: self._on_ended(pending, utterance),
                )
            )

    def _on_ended(self, pending: PendingRequest, utterance: Utterance) -> None:
        if pending.has_ended:
            self._finished.put(pending)
        elif utterance.errors:
            self._engine.abort(pending.request_id)

    def _respond(self) -> None:
        while (pending := self._finished.get()) is not None:
            self._answer(pending)
            pending.utterances.clear()  # they hold the request that holds them
            del pending  # or the last request's arrays would stay until the next one

    def _answer(self, pending: PendingRequest) -> None:
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


def _warm_up(runner: ModelRunner) -> None:
    """Pay for memory, thread start-up and kernel choice before the first request."""
    embeds = np.zeros((_WARM_UP_IDS, runner.dims.hidden_size), dtype=np.float32)
    runner.prefill(0, embeds)
    runner.decode(embeds[:1], np.asarray([_WARM_UP_IDS], dtype=np.int32))
