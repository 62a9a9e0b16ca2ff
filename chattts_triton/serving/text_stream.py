"""One text on its way through the members: its audio in chunks, while it is generated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from chattts_triton.audio import Pcm16Converter
from chattts_triton.config import StreamConfig
from chattts_triton.constants import CONTEXT_CODES, SAMPLE_RATE_HZ, SHORT_CONTEXT_CODES
from chattts_triton.engine.sequence import FinishReason
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    RequestCancelledError,
)
from chattts_triton.serving.edge import Tensors, column
from chattts_triton.serving.member_calls import MemberCalls
from chattts_triton.serving.record import RequestRecord
from chattts_triton.tensors import GPT
from chattts_triton.vocoder.chunks import ChunkSchedule
from chattts_triton.vocoder.segment_stream import SegmentStream
from chattts_triton.vocoder.trim_stream import TrimStream

Floats = npt.NDArray[np.float32]
T = TypeVar("T")

# About a quarter of a second. What a text really takes is known only once it has been spoken.
TYPICAL_CODES_PER_TEXT_ID = 12


class Mode(Enum):
    """How much of the audio behind a chunk is known when the chunk is cut."""

    QUALITY = "quality"  # all that reaches into the chunk: the samples are those of `chattts`
    LOW_LATENCY = "low_latency"  # a part of it; chunks are faded into each other
    AUTO = "auto"  # one of the two, by the length of the text and the speed of the server


class TextStream:
    """The chunks of one text. One thread takes them, any may `cancel`.

    Args:
        calls: The members.
        config: How chunks are cut.
        mode: As the caller chose.
        timeout_s: Of the request, from now on.
        record: What comes to be known about the request is written into it.
    """

    def __init__(
        self,
        calls: MemberCalls,
        config: StreamConfig,
        mode: Mode,
        timeout_s: float,
        record: RequestRecord,
    ) -> None:
        self._calls = calls
        self._mode = mode
        self._record = record
        self._config = config
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._stream_id = uuid.uuid4().hex  # nobody else is to guess it
        self._is_cancelled = False
        self._num_chunks = 0

    def cancel(self) -> None:
        """Have it end soon; the generation ends before its next step."""
        self._is_cancelled = True
        self._calls.close(self._stream_id)

    def chunks(self, inputs: Tensors) -> Iterator[tuple[Tensors, bool]]:
        """The outputs of each response but for the last one's flag, which is the second value.

        Args:
            inputs: The text and its options, as `preprocess` takes them.

        Raises:
            ChatTTSError: A member failed, or the request was cancelled or is too late.
        """
        prompt = self._calls.preprocess(inputs)
        self._learn(prompt["RECORD"])
        pcm16 = Pcm16Converter(int(prompt["SEED_USED"][0, 0]))
        trim = TrimStream() if prompt["TRIM"][0, 0] else None
        for audio, is_last in self._joined(prompt):
            if trim:
                audio = trim.push(audio)
                audio = np.concatenate([audio, trim.end()]) if is_last else audio
            if len(audio) or is_last:
                yield self._outputs(prompt, audio, pcm16, is_last=is_last), is_last

    def _joined(self, prompt: Tensors) -> Iterator[tuple[Floats, bool]]:
        """The audio of all segments, each followed by its pause."""
        num_segments = int(np.count_nonzero(prompt["NUM_TEXT_IDS"]))
        for index in range(num_segments):
            segment = self._open(prompt) if index == 0 else self._segment()
            while not segment.is_finished:
                audio = self._next_chunk(index, segment)
                if segment.is_finished:
                    pause = np.zeros(prompt["PAUSE_SAMPLES"][0, index], np.float32)
                    audio = np.concatenate([audio, pause])
                yield audio, segment.is_finished and index == num_segments - 1

    def _open(self, prompt: Tensors) -> SegmentStream:
        config = self._config
        if self._mode is Mode.QUALITY:
            min_codes = config.first_quality_chunk_codes + CONTEXT_CODES
        else:
            min_codes = config.first_chunk_codes + config.look_ahead_codes
        reply = self._call(lambda: self._calls.open(self._stream_id, prompt, min_codes))
        if self._mode is Mode.AUTO:
            self._mode = self._choose_mode(prompt, float(reply["STEP_SECONDS"][0, 0]))
        self._record.mode = self._mode.value
        segment = self._segment()
        self._take(segment, reply)
        return segment

    def _choose_mode(self, prompt: Tensors, step_s: float) -> Mode:
        """Quality, where its first chunk would come soon enough at the present speed."""
        expected = TYPICAL_CODES_PER_TEXT_ID * int(prompt["NUM_TEXT_IDS"][0, 0])
        expected = min(expected, int(prompt["MAX_NEW_CODES"][0, 0]))
        needed = min(self._config.first_quality_chunk_codes + CONTEXT_CODES, expected)
        is_soon = needed * step_s * 1000 <= self._config.auto_first_audio_ms
        return Mode.QUALITY if is_soon else Mode.LOW_LATENCY

    def _segment(self) -> SegmentStream:
        config = self._config
        growth, largest = config.chunk_growth_percent, config.max_chunk_codes
        if self._mode is Mode.QUALITY:
            return SegmentStream(ChunkSchedule(config.first_quality_chunk_codes, growth, largest))
        return SegmentStream(
            ChunkSchedule(config.first_chunk_codes, growth, largest),
            context_codes=SHORT_CONTEXT_CODES,
            look_ahead_codes=config.look_ahead_codes,
            cross_fade_samples=config.cross_fade_samples,
        )

    def _next_chunk(self, index: int, segment: SegmentStream) -> Floats:
        while not segment.is_ready:
            cursor = segment.num_codes
            read = partial(
                self._calls.read, self._stream_id, index, cursor, segment.wanted_codes - cursor
            )
            try:
                self._take(segment, self._call(read))
            except InvalidRequestError as error:  # the caller has no part in a read
                raise GenerationError(f"the stream cannot be read any more: {error}") from error
        audio = self._call(lambda: self._calls.decode(segment.window()))
        self._check_life()
        return segment.cut(audio)

    def _take(self, segment: SegmentStream, reply: Tensors) -> None:
        num_codes = int(reply["NUM_CODES"][0, 0])
        self._reply = reply
        self._learn(reply["RECORD"])
        self._record.steps += num_codes
        segment.append(reply["HIDDENS"][0, :num_codes])
        match reply["FINISH_REASON"][0, 0].decode():
            case "":
                return
            case FinishReason.LENGTH.value:
                self._record.num_cut = 1
            case FinishReason.STOP.value:
                pass
            case other:
                raise GenerationError(f"a segment ended by {other!r}")
        segment.end(segment.num_codes)

    def _outputs(
        self, prompt: Tensors, audio: Floats, pcm16: Pcm16Converter, *, is_last: bool
    ) -> Tensors:
        reason = FinishReason.LENGTH if self._record.num_cut else FinishReason.STOP
        outputs: Tensors = {
            "AUDIO": audio[None],
            "PCM16": pcm16.convert(audio)[None],
            "CHUNK_INDEX": column([self._num_chunks], np.int32),
            "SEED_USED": prompt["SEED_USED"],
            "MODE_USED": column([self._mode.value.encode()], np.object_),
            "FINISH_REASON": column([reason.value.encode() if is_last else b""], np.object_),
            "REFINED_TEXT": self._reply["REFINED_TEXT"],
            "WARNINGS": self._reply["WARNINGS"],
        }
        self._num_chunks += 1
        self._record.audio_s += len(audio) / SAMPLE_RATE_HZ
        return outputs

    def _learn(self, tensor: npt.NDArray[Any]) -> None:
        """Take over what a member has found out about the request."""
        if found := RequestRecord.from_tensor(tensor):
            record = self._record
            record.seed, record.num_texts = found.seed, found.num_texts
            record.characters, record.queue_ms = found.characters, found.queue_ms

    def _call(self, call: Callable[[], T]) -> T:
        """Ask a member, unless it is too late; what fails after `cancel` failed because of it."""
        self._check_life()
        try:
            return call()
        except ChatTTSError:
            if self._is_cancelled:
                self._check_life()
            raise

    def _check_life(self) -> None:
        if self._is_cancelled:
            raise RequestCancelledError(f"cancelled after {self._record.steps} steps")
        if time.monotonic() >= self._deadline_s:
            limit_ms = round(self._timeout_s * 1000)
            error = DeadlineExceededError(
                f"deadline of {limit_ms} ms exceeded after {self._record.steps} steps"
            )
            error.model = GPT.name  # its steps are what took the time, whoever looks at the clock
            raise error
