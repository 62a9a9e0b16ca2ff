"""A text whose hidden states are read while they are generated; `chattts_stream` reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import ChatTTSError, InvalidRequestError, fresh
from chattts_triton.manifest import Dims
from chattts_triton.serving.edge import Tensors, column
from chattts_triton.serving.pending_request import note_sequences
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.serving.utterance import Utterance, first_cause
from chattts_triton.text.cleaner import decode_text

_LONGEST_ID = 128  # bytes


@dataclass(frozen=True)
class Read:
    """A request for what a segment has from `cursor` on, once there are `min_codes` steps of it.

    Raises:
        InvalidRequestError: A value is missing or out of range.
    """

    stream_id: str
    segment: int
    cursor: int
    min_codes: int  # 0 closes the stream

    @classmethod
    def of(cls, inputs: Tensors) -> Read:
        """Read the tensors of a request that holds a STREAM_ID."""
        name = bytes(inputs["STREAM_ID"][0, 0])
        if len(inputs["STREAM_ID"]) != 1 or not 0 < len(name) <= _LONGEST_ID:
            raise InvalidRequestError.of("STREAM_ID", name, f"one name of 1 to {_LONGEST_ID} bytes")
        return cls(
            stream_id=decode_text(name, "STREAM_ID"),
            segment=_number(inputs, "SEGMENT", 0),
            cursor=_number(inputs, "CURSOR", 0),
            min_codes=_number(inputs, "MIN_CODES", 0),
        )


class CodeStream:
    """Follows the segments of one text, at most two of which are generated at the same time.

    Any thread may call it, once its utterance is set.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.utterance: Utterance | None = None
        self.record: RequestRecord | None = None
        self._lock = threading.RLock()  # what is begun may fail at once, and tell us so
        self._is_closed = False
        self._open_read: tuple[Read, Callable[[], None]] | None = None
        self._num_started = 1
        self._num_left_behind = 0
        self._last_read_s = time.monotonic()

    def submit(self, read: Read, on_due: Callable[[], None]) -> None:
        """Take a read; `on_due` is called once, on any thread, when it can be answered.

        Raises:
            InvalidRequestError: The segment is not being generated, or another read is open.
        """
        with self._lock:
            if read.segment >= self._num_started:
                raise InvalidRequestError.of(
                    "SEGMENT", read.segment, f"0 to {self._num_started - 1} at this time"
                )
            if self._open_read is not None:
                raise InvalidRequestError("STREAM_ID: another read of this stream is open")
            self._leave_behind(read.segment)
            self._open_read = read, on_due
        self.advance()

    def _leave_behind(self, segment: int) -> None:
        """Let go of what lies before a segment, which is not read again."""
        assert self.utterance is not None
        if segment < self._num_left_behind:
            wanted = f"{self._num_left_behind} and on: those before it have been read"
            raise InvalidRequestError.of("SEGMENT", segment, wanted)
        for left in self.utterance.segments[self._num_left_behind : segment]:
            if left.codes and left.codes.finish_reason is not None:
                left.codes.drop_hiddens()
        self._num_left_behind = segment

    def advance(self) -> None:
        """Have the open read answered if that can be done now, and otherwise looked at in time."""
        with self._lock:
            if self._open_read is None:
                return
            read, on_due = self._open_read
            sequence = self._sequence(read)
            wanted = read.cursor + read.min_codes
            is_due = self.error is not None or (
                sequence is not None
                and (sequence.finish_reason is not None or sequence.num_steps >= wanted)
            )
            if is_due:
                self._open_read = None
                self._last_read_s = time.monotonic()
        if is_due:
            on_due()
        elif sequence is not None:
            sequence.notify_at(wanted, self.advance)

    def begin_behind(self, segment: int, go_on: Callable[[Sequence], None]) -> None:
        """Hand the segment behind `segment` to `go_on`, if there is one that was not begun yet."""
        assert self.utterance is not None
        index = segment + 1
        with self._lock:  # held meanwhile, or a sequence could follow the abort of all
            if index == self._num_started < len(self.utterance.segments) and not self._is_closed:
                self._num_started += 1
                go_on(self.utterance.sequence(index))

    def close(self) -> None:
        """Begin no further segment."""
        with self._lock:
            self._is_closed = True

    def is_idle(self, timeout_s: float) -> bool:
        """Whether nobody has read for so long."""
        with self._lock:
            return self._open_read is None and time.monotonic() - self._last_read_s >= timeout_s

    @property
    def error(self) -> ChatTTSError | None:
        """Why it failed."""
        assert self.utterance is not None
        running = [segment.codes.error for segment in self.utterance.segments if segment.codes]
        return first_cause([*self.utterance.errors, *(error for error in running if error)])

    def outputs(self, read: Read, dims: Dims) -> tuple[Tensors, bool]:
        """What a read gets, and whether it is the last one of the stream.

        HIDDENS and CODES begin at the cursor; NUM_CODES says how many of their rows count, since
        there is one even where nothing has come. FINISH_REASON is empty until a segment's end.
        """
        utterance, sequence = self.utterance, self._sequence(read)
        assert utterance is not None
        assert sequence is not None
        note_sequences(self.record, list(utterance.begun))
        reason = sequence.finish_reason  # first, or steps could be missing before the end
        if sequence.error:  # it may have come since the read was found due
            raise fresh(sequence.error)
        stop = sequence.num_steps
        outputs = nothing_read(dims) | {
            "REFINED_TEXT": column([utterance.refined_text.encode()], np.object_),
            "WARNINGS": column([utterance.warnings_json], np.object_),
            "RECORD": to_tensor(self.record, 1),
        }
        if stop > read.cursor:
            outputs |= {
                "HIDDENS": sequence.hiddens_between(read.cursor, stop)[None],
                "CODES": sequence.tokens_between(read.cursor, stop)[None].astype(np.int32),
                "NUM_CODES": column([stop - read.cursor], np.int32),
            }
        if reason is None:
            return outputs, False
        outputs["FINISH_REASON"] = column([reason.value.encode()], np.object_)
        return outputs, read.segment == len(utterance.segments) - 1

    def _sequence(self, read: Read) -> Sequence | None:
        """That of the segment's codes; None while its refinement goes on."""
        assert self.utterance is not None
        return self.utterance.segments[read.segment].codes


class CodeStreams:
    """The streams that are open, by name. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, CodeStream] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._streams)

    def add(self, name: str, stream: CodeStream) -> None:
        """Take a stream.

        Raises:
            InvalidRequestError: One of that name is open.
        """
        with self._lock:
            if name in self._streams:
                raise InvalidRequestError.of("STREAM_ID", name, "one that is not open yet")
            self._streams[name] = stream

    def find(self, name: str) -> CodeStream:
        """The stream of that name.

        Raises:
            InvalidRequestError: None is open; perhaps it was given up, since nobody read it.
        """
        with self._lock:
            stream = self._streams.get(name)
        if stream is None:
            raise InvalidRequestError.of("STREAM_ID", name, "that of a stream which is open")
        return stream

    def remove(self, name: str) -> CodeStream | None:
        """Forget a stream, if it is there."""
        with self._lock:
            return self._streams.pop(name, None)

    def take_idle(self, timeout_s: float) -> list[CodeStream]:
        """Forget those that nobody has read for so long."""
        with self._lock:
            idle = [name for name, each in self._streams.items() if each.is_idle(timeout_s)]
            return [self._streams.pop(name) for name in idle]


def nothing_read(dims: Dims) -> Tensors:
    """The outputs of a read that finds nothing: one row where others have one for each step."""
    return {
        "HIDDENS": np.zeros((1, 1, dims.hidden_size), np.float32),
        "CODES": np.zeros((1, 1, dims.num_vq), np.int32),
        "NUM_CODES": column([0], np.int32),
        "FINISH_REASON": column([b""], np.object_),
        "REFINED_TEXT": column([b""], np.object_),
        "WARNINGS": column([b"[]"], np.object_),
        "RECORD": to_tensor(None, 1),
    }


def _number(inputs: Tensors, name: str, default: int) -> int:
    if name not in inputs:
        return default
    value = int(inputs[name][0, 0])
    if inputs[name].shape != (1, 1) or not 0 <= value <= MAX_NEW_CODES:
        raise InvalidRequestError.of(name, value, f"one value of 0 to {MAX_NEW_CODES}")
    return value
