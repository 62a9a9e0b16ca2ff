"""The `gpt` member: texts in the engine, answered when they have ended or as they are read."""

from __future__ import annotations

import itertools
import logging
import queue
from collections.abc import Callable
from typing import Any

import numpy as np

from chattts_triton import __version__
from chattts_triton.config import MAX_MODEL_LEN, EngineConfig, num_threads, read_config
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.placement import Placement, place_gpt
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import Deadline, Sequence
from chattts_triton.errors import InvalidRequestError, ModelLoadError, fresh
from chattts_triton.manifest import Dims, Manifest
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.code_stream import CodeStream, CodeStreams, Read, nothing_read
from chattts_triton.serving.edge import ModelArgs, Tensors, TritonEdge, check_call_size, column
from chattts_triton.serving.metrics import EngineMetrics, RequestMetrics
from chattts_triton.serving.options import read_queue_priority
from chattts_triton.serving.pending_request import PendingRequest
from chattts_triton.serving.prompt_reader import PromptReader
from chattts_triton.serving.record import MAX_ID_CHARACTERS, RequestRecord
from chattts_triton.serving.request_log import RequestLog
from chattts_triton.serving.responder import Responder
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.utterance import Utterance
from chattts_triton.tensors import RECORD, STREAM_ID, TEXT_IDS
from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder

LOGGER = logging.getLogger(__name__)
_WARM_UP_IDS = 16
_WARM_UP_STEPS = 4
_WARM_UP_SEQUENCES = 2
_IDLE_CHECK_S = 1.0


class GptModel:
    """The engine behind Triton's request objects.

    `accept` is called by Triton's thread, texts end on the engine's thread, and responses leave on
    a third one.

    Args:
        edge: Of this model.
        args: What Triton told it.
        metrics: Of this process; started and closed here.
    """

    def __init__(self, edge: TritonEdge, args: ModelArgs, metrics: Metrics) -> None:
        self._edge = edge
        self._metrics = metrics
        manifest, directory = args.load_manifest()
        self._dims = manifest.dims
        self._config = config = read_config(EngineConfig, args.parameters)
        use_one_torch_thread()  # sampling is too small to share, and the cores are the session's
        wanted = Placement(args.device, args.device_id, config.device_memory_mb * 1_000_000)
        runner = ModelRunner(
            manifest,
            directory,
            max_num_seqs=config.max_num_seqs,
            max_model_len=min(MAX_MODEL_LEN, manifest.dims.max_position_embeddings),
            threads=num_threads(config.threads),
            exact_batching=config.exact_batching,
            placement=place_gpt(manifest.precision, wanted),
        )
        self._engine = Engine(runner, make_samplers(manifest, config.max_num_seqs), config)
        tokenizer = manifest.member_directory(args.repository, "preprocess") / TOKENIZER_FILE
        self._encoder = PromptEncoder(tokenizer, manifest.special_ids)
        self._streams = CodeStreams()
        self._responder = Responder(self._give_up_idle_streams, _IDLE_CHECK_S)
        self._ids = itertools.count()
        self._requests = RequestLog(args.ensemble, RequestMetrics(metrics, args.ensemble))
        EngineMetrics(metrics, self._engine, config.max_num_seqs, build_labels(manifest))
        self._engine.start()
        _warm_up(self._engine, manifest.dims)
        metrics.start()
        self._responder.start()

    def accept(self, request: Any) -> None:
        """Take a request; its one response follows later, or at once if it is refused."""
        # The caller's request id may be empty or used twice, so the engine is given another.
        request_id = f"{next(self._ids)}:{request.request_id()[:MAX_ID_CHARACTERS]}"
        pending = PendingRequest(request, request.get_response_sender(), request_id)
        try:
            inputs = self._edge.tensors(request)
            if STREAM_ID.name in inputs:
                self._accept_read(pending, inputs)
            else:
                self._accept_texts(pending, inputs)
        except Exception as error:  # noqa: BLE001 - every request must be answered
            self._refuse(pending, error)

    def close(self) -> None:
        """Cancel what still runs, answer it, and end both threads."""
        self._engine.stop()
        self._responder.close()
        self._metrics.close()

    def _refuse(self, pending: PendingRequest, error: Exception) -> None:
        if pending.record:
            pending.record.end(error)
            self._requests.write(pending.record)
        self._send(pending, self._edge.error_response(error, pending.request))

    def _accept_texts(self, pending: PendingRequest, inputs: Tensors) -> None:
        pending.record = RequestRecord.from_tensor(inputs.get(RECORD.name))
        pending.utterances = self._utterances(
            pending, inputs, lambda utterance: self._on_changed(pending, utterance)
        )
        self._engine.add_request(
            [s for utterance in pending.utterances for s in utterance.sequences()]
        )

    def _on_changed(self, pending: PendingRequest, utterance: Utterance) -> None:
        if pending.has_ended:
            self._responder.submit(lambda: self._answer(pending))
        elif utterance.errors:
            self._engine.abort(pending.request_id)

    def _answer(self, pending: PendingRequest) -> None:
        try:
            pending.note()
            if error := pending.error:
                raise fresh(error)
            response = self._edge.response(
                pending.request, pending.outputs() | self._common_outputs(len(pending.utterances))
            )
        except Exception as caught:  # noqa: BLE001 - every request must be answered
            self._refuse(pending, caught)
        else:
            self._send(pending, response)
        pending.utterances.clear()  # they hold the request that holds them

    def _accept_read(self, pending: PendingRequest, inputs: Tensors) -> None:
        read = Read.of(inputs)
        if TEXT_IDS.name in inputs and read.segment == 0:
            stream = self._open_stream(pending, inputs, read.stream_id)
        elif read.min_codes == 0:
            self._close_stream(pending, read.stream_id)
            return
        else:
            stream = self._streams.find(read.stream_id)
        stream.submit(
            read, lambda: self._responder.submit(lambda: self._answer_read(pending, stream, read))
        )

    def _open_stream(self, pending: PendingRequest, inputs: Tensors, name: str) -> CodeStream:
        stream = CodeStream(pending.request_id)
        stream.record = RequestRecord.from_tensor(inputs.get(RECORD.name))  # ends at its caller
        utterances = self._utterances(
            pending, inputs, lambda utterance: self._on_stream_changed(stream, utterance)
        )
        if len(utterances) != 1:
            raise InvalidRequestError.of("TEXT_IDS", len(utterances), "one text in a stream")
        stream.utterance = utterances[0]
        self._streams.add(name, stream)
        try:
            self._engine.add_request([stream.utterance.sequence(0)])
        except Exception:
            self._streams.remove(name)
            raise
        return stream

    def _on_stream_changed(self, stream: CodeStream, utterance: Utterance) -> None:
        if utterance.errors:
            self._abandon(stream)
        stream.advance()

    def _abandon(self, stream: CodeStream) -> None:
        stream.close()
        self._engine.abort(stream.request_id)

    def _answer_read(self, pending: PendingRequest, stream: CodeStream, read: Read) -> None:
        is_last = True
        try:
            if error := stream.error:
                raise fresh(error)
            # From its first chunk on, a segment is so far ahead of its listener that the next one
            # may take its share of the batch.
            stream.begin_behind(read.segment, self._engine.continue_request)
            outputs, is_last = stream.outputs(read, self._dims)
            response = self._edge.response(pending.request, outputs | self._common_outputs(1))
        except Exception as caught:  # noqa: BLE001 - every request must be answered
            response = self._edge.error_response(caught, pending.request)
            self._abandon(stream)
        if is_last:
            self._streams.remove(read.stream_id)
        self._send(pending, response)

    def _close_stream(self, pending: PendingRequest, name: str) -> None:
        """Cancel a stream; one that is not open any more was closed by its end."""
        if stream := self._streams.remove(name):
            self._abandon(stream)
        response = self._edge.response(
            pending.request, nothing_read(self._dims) | self._common_outputs(1)
        )
        self._send(pending, response)

    def _give_up_idle_streams(self) -> None:
        timeout_ms = self._config.stream_idle_timeout_ms
        for stream in self._streams.take_idle(timeout_ms / 1000):
            LOGGER.warning("request %s: not read for %d ms", stream.request_id, timeout_ms)
            self._abandon(stream)

    def _utterances(
        self, pending: PendingRequest, inputs: Tensors, on_changed: Callable[[Utterance], None]
    ) -> list[Utterance]:
        """The texts of a request, checked."""
        reader = PromptReader(inputs, self._dims)
        self._engine.check_capacity(int(np.count_nonzero(inputs["NUM_TEXT_IDS"])))
        check_call_size("MAX_NEW_CODES", inputs["MAX_NEW_CODES"].sum(axis=1).tolist())
        timeout_s = pending.request.timeout() / 1e6 or self._config.default_timeout_ms / 1e3
        record = RequestRecord.from_tensor(inputs.get(RECORD.name))
        # It counts from the arrival of the request, which may have been at another member.
        deadline = Deadline.after(timeout_s, record.arrival_s if record else None)
        priority = read_queue_priority(self._edge.parameters(pending.request))
        return [
            Utterance(
                reader.segments(row),
                reader.prompting(row, pending.request_id, deadline, priority),
                reader.warnings(row),
                self._encoder,
                self._engine.continue_request,
                on_changed,
            )
            for row in range(len(inputs["TEXT_IDS"]))
        ]

    def _common_outputs(self, num_rows: int) -> Tensors:
        step_s = self._engine.stats.step_s
        return {"STEP_SECONDS": column([step_s] * num_rows, np.float32)}

    def _send(self, pending: PendingRequest, response: Any) -> None:
        try:
            pending.sender.send(response, flags=self._edge.final_flag)
        except Exception:
            LOGGER.exception("request %s: its response could not be sent", pending.request_id)


def build_labels(manifest: Manifest) -> dict[str, str]:
    """What is served, for `chattts_build_info`."""
    return {
        "version": __version__,
        "precision": manifest.precision,
        "export_id": manifest.export_id,
        "onnxruntime": manifest.versions["onnxruntime"],
    }


def _warm_up(engine: Engine, dims: Dims) -> None:
    """Pay for memory, thread start-up and kernel choice before the first request.

    Raises:
        ModelLoadError: The model cannot be run.
    """
    ended: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
    ids = np.zeros(_WARM_UP_IDS, np.int32)
    speaker = np.zeros(dims.hidden_size, np.float32)
    params = SamplingParams(seed=0, max_new_codes=_WARM_UP_STEPS)
    # None that refines: that would bring the weights of the text head into memory for good.
    for _ in range(_WARM_UP_SEQUENCES):
        engine.continue_request(Sequence("warm-up", ids, speaker, params, ended.put))
    for _ in range(_WARM_UP_SEQUENCES):
        if error := ended.get().error:
            raise ModelLoadError(f"the model cannot be run: {error}")
    engine.stats.take()  # these steps were nobody's
