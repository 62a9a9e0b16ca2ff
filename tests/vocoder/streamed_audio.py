"""Drives a segment's stream from end to end, and looks for clicks in what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from chattts_triton.constants import CONTEXT_CODES, SAMPLES_PER_CODE
from chattts_triton.vocoder.segment_stream import SegmentStream

AROUND_SAMPLES = 512

Decode = Callable[[np.ndarray], np.ndarray]


@dataclass
class Streamed:
    """The chunks of a segment, and the audio of the window that each was cut from."""

    chunks: list[np.ndarray] = field(default_factory=list)
    windows: list[np.ndarray] = field(default_factory=list)

    @property
    def audio(self) -> np.ndarray:
        return np.concatenate(self.chunks)

    @property
    def edges(self) -> list[int]:
        """Where each chunk but the first begins."""
        return np.cumsum([len(chunk) for chunk in self.chunks])[:-1].tolist()

    @property
    def window_starts(self) -> list[int]:
        """The sample that each window begins with."""
        context = CONTEXT_CODES * SAMPLES_PER_CODE
        return [max(start - context, 0) for start in [0, *self.edges]]

    def take(self, stream: SegmentStream, decode: Decode) -> None:
        """All chunks that can be made of what has come."""
        while stream.is_ready:
            self.windows.append(decode(stream.window()))
            self.chunks.append(stream.cut(self.windows[-1]))


def stream_whole(stream: SegmentStream, hiddens: np.ndarray, decode: Decode) -> Streamed:
    """Stream a segment that has already ended."""
    streamed = Streamed()
    stream.append(hiddens)
    stream.end(len(hiddens))
    streamed.take(stream, decode)
    assert stream.is_finished
    return streamed


def loudest_edge(
    streamed: Streamed, one_shot: np.ndarray, *, beside_windows: bool = False
) -> float:
    """The largest step between two samples at any edge, over the largest one around that edge.

    Around it means within 512 samples in the one-shot audio. Above 1.0 there is a step at an edge
    that the audio itself does not have: a click. A window with a very short look-ahead gives a
    different sound, which may itself have a larger step at that very place; `beside_windows` lets
    that step count as well.
    """
    loudest = 0.0
    audio = streamed.audio
    windows = zip(streamed.windows, streamed.window_starts, strict=True)
    for edge, (window, start) in zip(streamed.edges, windows, strict=False):
        around = _largest_step(one_shot, edge, AROUND_SAMPLES)
        if beside_windows:
            around = max(around, _largest_step(window, edge - start, 2))
        loudest = max(loudest, _largest_step(audio, edge, 2) / around)
    return loudest


def _largest_step(audio: np.ndarray, center: int, reach: int) -> float:
    """Among the samples from `reach` before `center` to `reach` behind it."""
    return np.abs(np.diff(audio[max(center - reach, 0) : center + reach + 1])).max()
