"""What is known about a request: begun by the first member, passed on, ended where it ends."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import ChatTTSError, GenerationError, InvalidRequestError
from chattts_triton.serving.edge import column
from chattts_triton.tensors import RECORD

OK = "ok"
OUTCOMES = (OK, "invalid", "refused", "cancelled", "deadline", "error")

MAX_ID_CHARACTERS = 128
MAX_ERROR_CHARACTERS = 300
_MAX_BYTES = 4096
_MAX_NUMBER = 2**63 - 1
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}
# What a message quotes, up to the last quotation mark or to where a long value was cut.
_QUOTED = re.compile(r"b?(['\"]).*(\1|\.\.\.)", re.DOTALL)


@dataclass
class RequestRecord:
    """One request of a caller; its holder fills in what it knows. Not for several threads at once.

    Attributes:
        id: The caller's own, cut to MAX_ID_CHARACTERS; empty if there was none.
        arrival_s: By `time.monotonic()`, which all processes of a machine share.
        stream: Whether `chattts_stream` was called.
        mode: Of a stream, as it was used.
        seed: Of the first text.
        characters: Of all texts, as they were sent.
        steps: Code steps of all texts.
        num_cut: Texts whose finish reason is `length`.
        queue_ms: From the arrival to the first step of the first sequence.
        ttfa_ms: From the arrival to the first sample that left; None if there was none.
        total_ms: From the arrival to the end; None until then.
        audio_s: Of all audio that left.
        outcome: One of OUTCOMES, empty until the end.
        error: Why it did not end well, without what the caller wrote.
    """

    id: str
    arrival_s: float
    stream: bool = False
    mode: str = ""
    seed: int | None = None
    num_texts: int = 0
    characters: int = 0
    steps: int = 0
    num_cut: int = 0
    queue_ms: float | None = None
    ttfa_ms: float | None = None
    total_ms: float | None = None
    audio_s: float = 0.0
    outcome: str = ""
    error: str = ""

    @classmethod
    def begin(cls, request_id: str, arrival_s: float | None = None) -> RequestRecord:
        """The record of a request that arrived now, or at `arrival_s`."""
        at_s = time.monotonic() if arrival_s is None else arrival_s
        return cls(request_id[:MAX_ID_CHARACTERS], at_s)

    @classmethod
    def from_tensor(cls, array: npt.NDArray[Any] | None) -> RequestRecord | None:
        """Read the tensor RECORD.

        Args:
            array: (N, 1) of bytes, or None. Only the first row counts.

        Returns:
            None if there is no record: there is no tensor, or its first row is empty.

        Raises:
            InvalidRequestError: It is not what `to_tensor` makes.
        """
        if array is None:
            return None
        text = array.flat[0] if array.dtype == np.object_ and array.size else None
        if not isinstance(text, bytes) or len(text) > _MAX_BYTES:
            got = f"{len(text)} bytes" if isinstance(text, bytes) else "no text"
            raise InvalidRequestError.of(RECORD.name, got, f"at most {_MAX_BYTES} bytes of JSON")
        return cls._parse(text) if text else None

    def end(self, error: BaseException | None = None) -> None:
        """Set outcome and times. To be called once, when the answer is on its way.

        Args:
            error: Why it failed; None if it ended well. An error that is none of this project's
                counts as `error`, and leaves only its name here.
        """
        self.total_ms = (time.monotonic() - self.arrival_s) * 1000
        if error is None:
            self.outcome = OK
            if self.ttfa_ms is None:  # one answer: its first sample leaves with the last one
                self.ttfa_ms = self.total_ms
        else:
            known = error if isinstance(error, ChatTTSError) else GenerationError()
            self.outcome = known.outcome
            self.error = _describe(error)[:MAX_ERROR_CHARACTERS]

    @classmethod
    def _parse(cls, text: bytes) -> RequestRecord:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        kinds = {field.name: str(field.type) for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != kinds.keys():
            raise InvalidRequestError.of(RECORD.name, text, "a request's record")
        for name, kind in kinds.items():
            if not _is_sound(values[name], kind):
                raise InvalidRequestError(f"{RECORD.name}: {name} is out of range")
        if values["arrival_s"] > time.monotonic():
            raise InvalidRequestError(f"{RECORD.name}: arrival_s is out of range")
        if values["outcome"]:
            raise InvalidRequestError(f"{RECORD.name}: of a request that has ended")
        return cls(**values)


def to_tensor(record: RequestRecord | None, num_rows: int) -> npt.NDArray[Any]:
    """The tensor RECORD: (N, 1) of bytes, the first row the record if there is one, else empty."""
    text = b"" if record is None else json.dumps(asdict(record)).encode()
    return column([text, *[b""] * (num_rows - 1)], np.object_)


def _is_sound(value: object, kind: str) -> bool:
    # True is an int to Python, but not in a record.
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "bool"):
        return False
    if isinstance(value, str):
        return len(value) <= MAX_ID_CHARACTERS
    if isinstance(value, int | float):
        return 0 <= value <= _MAX_NUMBER  # NaN is not
    return True


def _describe(error: BaseException) -> str:
    """What may be logged of an error: the message of a refusal quotes what the caller wrote."""
    if isinstance(error, InvalidRequestError):
        return _QUOTED.sub("'...'", str(error))
    return str(error) if isinstance(error, ChatTTSError) else type(error).__name__
