"""The `vocos_decoder` member: hidden states of segments to one float audio and 16-bit PCM."""

from __future__ import annotations

import time
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
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.record import RequestRecord
from chattts_triton.serving.request_log import RequestLog
from chattts_triton.serving.series import Metrics
from chattts_triton.vocoder.decoder import WaveformDecoder
from chattts_triton.vocoder.joining import join_segments, trim_silence

Floats = npt.NDArray[np.float32]

_LONGEST_PAUSE = 5 * SAMPLE_RATE_HZ


class VocosDecoderModel:
    """Decodes each segment of each row by itself."""

    def __init__(self, args: ModelArgs) -> None:
        manifest, directory = args.load_manifest()
        threads = num_threads(read_config(VocoderConfig, args.parameters).threads, share=0.5)
        self._decoder = WaveformDecoder(directory, threads=threads, on_gpu=args.on_gpu)
        self._hidden_size = manifest.dims.hidden_size
        # The first call pays for memory and thread start-up; no request should.
        self._decoder.decode(np.zeros((8, self._hidden_size), dtype=np.float32))

    def run(self, inputs: Tensors, _parameters: dict[str, object]) -> Tensors:
        """Decode the segments of each row, and join them.

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
        audios = [self._speak(*row) for row in rows]
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

    def _speak(self, segments: list[Floats], pauses: list[int], trim: bool) -> Floats:
        audio = join_segments([self._decoder.decode(hiddens) for hiddens in segments], pauses)
        return trim_silence(audio) if trim else audio


class VocosDecoderMember:
    """The model behind Triton's request objects; the requests of `chattts` end here.

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
        metrics.start()

    def answer(self, request: Any) -> Any:
        """The response to one request, which is written down if it has a record."""
        record: RequestRecord | None = None

        def run(inputs: Tensors, parameters: dict[str, object]) -> Tensors:
            nonlocal record
            record = RequestRecord.from_tensor(inputs.get("RECORD"))
            _check_deadline(record, request.timeout() / 1e6)
            outputs = self._model.run(inputs, parameters)
            if record:
                record.audio_s = float(outputs["AUDIO_LENGTH"].sum()) / SAMPLE_RATE_HZ
            return outputs

        def on_error(error: Exception) -> None:
            if record:
                record.audio_s = 0.0
                record.end(error)

        response = self._edge.answer(request, run, on_error)
        if record:
            if not record.outcome:
                record.end()
            self._requests.write(record)
        return response

    def close(self) -> None:
        """Publish what has been counted."""
        self._metrics.close()


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
