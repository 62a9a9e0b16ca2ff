"""The `vocos_decoder` member: hidden states of segments to one float audio and 16-bit PCM."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.audio import to_pcm16
from chattts_triton.config import VocoderConfig, num_threads, read_config
from chattts_triton.constants import MAX_NEW_CODES, SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from chattts_triton.errors import DeadlineExceededError, InvalidRequestError
from chattts_triton.sampling_params import check_range
from chattts_triton.serving.edge import (
    ModelArgs,
    Tensors,
    TritonEdge,
    check_call_size,
    column,
    pad_rows,
    split_segments,
)
from chattts_triton.serving.lane import Lane
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.record import RequestRecord
from chattts_triton.serving.request_log import RequestLog
from chattts_triton.serving.series import Metrics
from chattts_triton.vocoder.decoder import WaveformDecoder
from chattts_triton.vocoder.joining import join_segments, trim_silence

LOGGER = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

_LONGEST_PAUSE = 5 * SAMPLE_RATE_HZ


class VocosDecoderModel:
    """Decodes each segment of each row by itself."""

    def __init__(self, args: ModelArgs) -> None:
        manifest, directory = args.load_manifest()
        threads = num_threads(read_config(VocoderConfig, args.parameters).threads, share=0.5)
        self._decoder = WaveformDecoder(
            directory, threads=threads, device=args.device, device_id=args.device_id
        )
        self._hidden_size = manifest.dims.hidden_size
        # The first call pays for memory and thread start-up; no request should.
        self._decoder.decode(np.zeros((8, self._hidden_size), dtype=np.float32))

    def run(self, inputs: Tensors) -> Generator[None, None, Tensors]:
        """Decode the segments of each row, and join them; yields between two segments.

        Args:
            inputs: HIDDENS (N, T, hidden), the segments of a row one behind the other; NUM_CODES,
                SEED and, where wanted, PAUSE_SAMPLES (N, segments); TRIM (N, 1).

        Returns:
            AUDIO (N, S) and PCM16 (N, S), padded with zeros; AUDIO_LENGTH (N, 1).

        Raises:
            InvalidRequestError: A row has no steps or more than were sent, HIDDENS is of another
                width, or a seed or a pause is out of range.
            GenerationError: The audio of a row is not finite.
        """
        width = inputs["HIDDENS"].shape[2]
        if width != self._hidden_size:
            raise InvalidRequestError.of("HIDDENS", width, f"rows of {self._hidden_size} values")
        # The dither is drawn from the text's own seed, which is that of its first segment.
        if inputs["SEED"].shape[1] == 0:
            raise InvalidRequestError.of("SEED", "no value", "one for each segment")
        seeds = [check_range("SEED", int(seed)) for seed in inputs["SEED"][:, 0]]
        rows = [self._split(inputs, row) for row in range(len(seeds))]
        check_call_size("NUM_CODES", [_num_codes(segments, pauses) for segments, pauses, _ in rows])
        audios = []
        for row in rows:
            audios.append((yield from self._speak(*row)))
        pcm16 = [to_pcm16(audio, seed) for audio, seed in zip(audios, seeds, strict=True)]
        return {
            "AUDIO": pad_rows(audios),
            "AUDIO_LENGTH": column([len(audio) for audio in audios], np.int64),
            "PCM16": pad_rows(pcm16),
        }

    def _split(self, inputs: Tensors, row: int) -> tuple[list[Floats], list[int], bool]:
        segments = split_segments("NUM_CODES", inputs["HIDDENS"][row], inputs["NUM_CODES"][row])
        longest = max(len(segment) for segment in segments)
        if longest > MAX_NEW_CODES:
            raise InvalidRequestError.of("NUM_CODES", longest, f"1 to {MAX_NEW_CODES} a segment")
        pauses = [0] * len(segments)
        if "PAUSE_SAMPLES" in inputs:
            pauses = inputs["PAUSE_SAMPLES"][row, : len(segments)].tolist()
        if len(pauses) != len(segments) or not all(0 <= p <= _LONGEST_PAUSE for p in pauses):
            wanted = f"0 to {_LONGEST_PAUSE} for each of {len(segments)} segments"
            raise InvalidRequestError.of("PAUSE_SAMPLES", pauses, wanted)
        return segments, pauses, bool("TRIM" in inputs and inputs["TRIM"][row, 0])

    def _speak(
        self, segments: list[Floats], pauses: list[int], trim: bool
    ) -> Generator[None, None, Floats]:
        audios = []
        for hiddens in segments:
            audios.append(self._decoder.decode(hiddens))
            yield
        audio = join_segments(audios, pauses)
        return trim_silence(audio) if trim else audio


class VocosDecoderMember:
    """The model behind Triton's request objects; the requests of `chattts` end here.

    Requests are decoded in turns, a segment at a time. The windows of streams, which somebody is
    listening to, have a thread of their own: they never wait for a text.

    Args:
        edge: Of this model.
        args: What Triton told it.
        metrics: Of this process; started and closed here.
    """

    def __init__(self, edge: TritonEdge, args: ModelArgs, metrics: Metrics) -> None:
        self._edge = edge
        self._metrics = metrics
        self._model = VocosDecoderModel(args)
        self._requests = RequestLog(args.ensemble, RequestMetrics(metrics, args.ensemble))
        self._texts, self._windows = Lane("texts"), Lane("windows")
        metrics.start()

    def accept(self, request: Any) -> None:
        """Take a request; its one response follows later."""
        lane = self._windows if self._edge.is_for_stream(request) else self._texts
        lane.submit(self._answer(request, request.get_response_sender()))

    def close(self) -> None:
        """Answer what was accepted, and publish what has been counted."""
        self._texts.close()
        self._windows.close()
        self._metrics.close()

    def _answer(self, request: Any, sender: Any) -> Generator[None, None, None]:
        """Decode a request and send its response; what has a record is written down."""
        record: RequestRecord | None = None
        try:
            inputs = self._edge.tensors(request)
            record = RequestRecord.from_tensor(inputs.get("RECORD"))
            timeout_s = request.timeout() / 1e6
            outputs = yield from _until(self._model.run(inputs), record, timeout_s)
            if record:
                record.audio_s = float(outputs["AUDIO_LENGTH"].sum()) / SAMPLE_RATE_HZ
            response = self._edge.response(request, outputs)
        except Exception as error:  # noqa: BLE001 - every request must be answered
            if record:
                record.audio_s = 0.0
                record.end(error)
            response = self._edge.error_response(error, request)
        if record:
            if not record.outcome:
                record.end()
            self._requests.write(record)
        try:
            sender.send(response, flags=self._edge.final_flag)
        except Exception:
            LOGGER.exception("request %s: its response could not be sent", request.request_id())


def _until(
    decoding: Generator[None, None, Tensors], record: RequestRecord | None, timeout_s: float
) -> Generator[None, None, Tensors]:
    """Go on with a decoding for as long as somebody waits for it."""
    while True:
        _check_deadline(record, timeout_s)
        try:
            next(decoding)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        yield


def _check_deadline(record: RequestRecord | None, timeout_s: float) -> None:
    """Do not decode what nobody waits for any more.

    Raises:
        DeadlineExceededError: The request's time is up.
    """
    if record and timeout_s and time.monotonic() >= record.arrival_s + timeout_s:
        raise DeadlineExceededError(
            f"deadline of {round(timeout_s * 1000)} ms exceeded after {record.steps} steps"
        )


def _num_codes(segments: list[Floats], pauses: list[int]) -> int:
    """The steps that a row's audio lasts, its pauses counted in."""
    return sum(map(len, segments)) + -(-sum(pauses) // SAMPLES_PER_CODE)
