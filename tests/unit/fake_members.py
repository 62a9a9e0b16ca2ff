"""The members of a set as `chattts_stream` sees them: what they say is scripted, and so is when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from fake_pb_utils import WAIT_S, Call

from chattts_triton.constants import SAMPLES_PER_CODE, num_audio_samples
from chattts_triton.serving.edge import Tensors, column
from chattts_triton.serving.record import RequestRecord, to_tensor

HIDDEN_SIZE = 3
REACH_CODES = 20  # of a step's audio to either side, less than the real decoder's


@dataclass
class Spoken:
    """What a segment comes to: so many steps, silent in some places, followed by a pause."""

    num_codes: int
    reason: str = "stop"
    pause: int = 0
    silent: Sequence[slice] = ()

    def hiddens(self, seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        hiddens = random.standard_normal((self.num_codes, HIDDEN_SIZE)).astype(np.float32)
        for steps in self.silent:
            hiddens[steps] = 0.0
        return hiddens


def decode(hiddens: np.ndarray) -> np.ndarray:
    """Audio of which each step depends on those around it, as far as they are in the window."""
    padded = np.pad(hiddens, ((REACH_CODES, REACH_CODES), (0, 0)))
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * REACH_CODES + 1, axis=0)
    weights = 1.0 / (1.0 + np.abs(np.arange(-REACH_CODES, REACH_CODES + 1)))
    levels = np.tanh((around * weights).sum(axis=2) / 4)  # (T, HIDDEN_SIZE)
    time = np.linspace(0.0, 1.0, SAMPLES_PER_CODE, endpoint=False)
    waves = np.stack([np.sin(2 * np.pi * (each + 1) * time) for each in range(HIDDEN_SIZE)])
    audio = (levels @ waves).ravel() / HIDDEN_SIZE
    return audio[: num_audio_samples(len(hiddens))].astype(np.float32)


# How many steps a read finds beyond those it waited for: of a segment, and of its steps by now.
Arrival = Callable[[int, int], int]


def as_few_as_wanted(_segment: int, _num_codes: int) -> int:
    return 0


@dataclass
class Members:
    """A `preprocess`, a `gpt` and a `vocos_decoder` for `PbUtils.models`; any thread may call.

    Attributes:
        segments: Of the one text that there is.
        arrival: How far generation is ahead of what is read.
        tells_late: A segment's end is only told by a read behind its last step.
        step_s: What `gpt` says about its speed.
        stalls_at: No read from this step of the first segment on is answered before a close.
        before: Called before a member answers, by its name; what it returns, if anything, is the
            text of an error.
        is_open: Names of the streams that are being generated.
    """

    segments: list[Spoken]
    arrival: Arrival = as_few_as_wanted
    tells_late: bool = False
    trim: bool = False
    seed: int = 7
    step_s: float = 0.001
    num_text_ids: int = 40
    max_new_codes: int = 2048
    stalls_at: int | None = None
    before: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    is_open: dict[str, threading.Event] = field(default_factory=dict)  # set when it is closed
    num_closed: int = 0
    num_reads: int = 0

    def models(self, set_name: str = "chattts") -> dict[str, Callable[[Call], Tensors | str]]:
        prefix = "" if set_name == "chattts" else f"{set_name}_"
        members = {
            "preprocess": self._preprocess,
            "gpt": self._gpt,
            "vocos_decoder": self._vocos_decoder,
        }
        return {f"{prefix}{name}": self._hooked(name, each) for name, each in members.items()}

    def whole_audio(self) -> np.ndarray:
        """What `chattts` would make of the same steps, before it trims."""
        parts = [
            part
            for index, segment in enumerate(self.segments)
            for part in (decode(segment.hiddens(index)), np.zeros(segment.pause, np.float32))
        ]
        return np.concatenate(parts)

    def _hooked(self, name: str, member: Callable[[Call], Tensors | str]) -> Callable:
        def answer(call: Call) -> Tensors | str:
            error = self.before.get(name, lambda: None)()
            return error or member(call)

        return answer

    def _preprocess(self, call: Call) -> Tensors:
        record = RequestRecord.begin(call.request_id)
        record.seed, record.num_texts, record.characters = self.seed, 1, 5
        num_segments = len(self.segments)
        prompt = {
            "NUM_TEXT_IDS": np.full((1, num_segments), self.num_text_ids, np.int32),
            "PAUSE_SAMPLES": np.array([[each.pause for each in self.segments]], np.int32),
            "TEXT_IDS": np.zeros((1, num_segments * self.num_text_ids), np.int32),
            "SEED_USED": column([self.seed], np.int64),
            "MAX_NEW_CODES": np.full((1, num_segments), self.max_new_codes, np.int32),
            "TRIM": column([self.trim], np.bool_),
            "RECORD": to_tensor(record, 1),
        }
        return {name: prompt.get(name, np.zeros((1, 1), np.int32)) for name in call.outputs}

    def _gpt(self, call: Call) -> Tensors | str:
        name = bytes(call.inputs["STREAM_ID"][0, 0]).decode()
        segment, cursor, min_codes = (
            int(call.inputs[each][0, 0]) for each in ("SEGMENT", "CURSOR", "MIN_CODES")
        )
        if min_codes == 0:
            return self._close(name)
        if "TEXT_IDS" in call.inputs:
            self.is_open[name] = threading.Event()
        if name not in self.is_open:
            return "invalid_request|gpt: STREAM_ID: got another, wanted that of an open stream"
        if self.stalls_at is not None and cursor + min_codes > self.stalls_at:
            assert self.is_open[name].wait(WAIT_S)
        if self.is_open[name].is_set():
            return "cancelled|gpt: cancelled after 9 steps"
        self.num_reads += 1
        return self._read(name, segment, cursor, cursor + min_codes)

    def _close(self, name: str) -> Tensors:
        if name in self.is_open and not self.is_open[name].is_set():
            self.num_closed += 1
            self.is_open[name].set()
        return {"NUM_CODES": column([0], np.int32)}

    def _read(self, name: str, segment: int, cursor: int, wanted: int) -> Tensors:
        spoken = self.segments[segment]
        stop = min(wanted + self.arrival(segment, wanted), spoken.num_codes)
        is_end_known = stop == spoken.num_codes and not (self.tells_late and stop >= wanted)
        hiddens = spoken.hiddens(segment)[cursor:stop]
        if is_end_known and segment == len(self.segments) - 1:
            del self.is_open[name]
        return {
            # A row is there even where there is no step, and then means nothing.
            "HIDDENS": (hiddens if len(hiddens) else np.full((1, HIDDEN_SIZE), 9.0, "f4"))[None],
            "NUM_CODES": column([len(hiddens)], np.int32),
            "FINISH_REASON": column([spoken.reason.encode() if is_end_known else b""], np.object_),
            "REFINED_TEXT": column([f"refined {segment}".encode()], np.object_),
            "WARNINGS": column([b'["refine_refused"]'], np.object_),
            "STEP_SECONDS": column([self.step_s], np.float32),
            "RECORD": to_tensor(None, 1),
        }

    def _vocos_decoder(self, call: Call) -> Tensors:
        (hiddens,), ((num_codes,),) = call.inputs["HIDDENS"], call.inputs["NUM_CODES"]
        assert num_codes == len(hiddens)
        return {"AUDIO": decode(hiddens)[None]}
