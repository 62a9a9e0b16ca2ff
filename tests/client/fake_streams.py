"""What a fake server does in a stream, step by step, and the chunks that it sends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import grpc
import numpy as np

# A chunk is sent, a text is sent as Triton sends an error, an event is waited for, and a status
# ends the call. A stream whose steps are over ends, be its last chunk sent or not.
Step: TypeAlias = dict[str, np.ndarray] | str | threading.Event | tuple[grpc.StatusCode, str]

STEP_SAMPLES = 512
POLL_S = 0.02


def chunk_of(
    samples: np.ndarray, index: int, *, seed: int = 1, mode: str = "quality", reason: str = ""
) -> dict[str, np.ndarray]:
    """The outputs of one chunk; one with a reason to finish is the last."""
    return {
        "AUDIO": samples.astype(np.float32).reshape(1, -1),
        "PCM16": (samples * 1000).astype(np.int16).reshape(1, -1),
        "CHUNK_INDEX": np.array([[index]], np.int32),
        "SEED_USED": np.array([[seed]], np.int64),
        "MODE_USED": _string(mode),
        "FINISH_REASON": _string(reason),
        "REFINED_TEXT": _string("一个" if reason else ""),
        "WARNINGS": _string('["refine_refused"]' if reason else ""),
    }


def chunks_of(
    samples: np.ndarray, *, seed: int = 1, mode: str = "quality", reason: str = "stop"
) -> list[dict[str, np.ndarray]]:
    """A whole stream, one step of audio a chunk."""
    pieces = np.split(samples, range(STEP_SAMPLES, len(samples), STEP_SAMPLES))
    reasons = [""] * (len(pieces) - 1) + [reason]
    return [
        chunk_of(piece, index, seed=seed, mode=mode, reason=reason)
        for index, (piece, reason) in enumerate(zip(pieces, reasons, strict=True))
    ]


def silence(index: int, *, reason: str = "", num_samples: int = STEP_SAMPLES) -> Step:
    """A chunk of no interest."""
    return chunk_of(np.zeros(num_samples), index, reason=reason)


class FakeCall:
    """Runs the steps of one stream, and knows whether it was cancelled before it was whole."""

    def __init__(self, context: Any, cancelled: threading.Event, ended: threading.Event) -> None:
        self._context = context
        self._cancelled = cancelled
        self._ended = ended
        self._is_whole = False
        context.add_callback(self._on_end)

    def run(self, steps: Iterable[Step]) -> Iterator[dict[str, np.ndarray] | str]:
        for step in steps:
            if isinstance(step, threading.Event):
                while not step.wait(POLL_S):
                    if not self._context.is_active():
                        return
            elif isinstance(step, tuple):
                self._is_whole = True
                self._context.abort(*step)
            else:
                self._is_whole = isinstance(step, str) or step["FINISH_REASON"].item() != b""
                yield step
        self._is_whole = True

    def _on_end(self) -> None:
        if not self._is_whole:
            self._cancelled.set()
        self._ended.set()


def _string(text: str) -> np.ndarray:
    return np.array([[text.encode()]], np.object_)
