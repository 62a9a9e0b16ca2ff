"""What the engine measures of itself, for a reader on another thread."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_KEPT = 4096  # steps, and queue times; several seconds of a fast model
AVERAGED_STEPS = 20
_NEW_STEP_WEIGHT = 2 / (AVERAGED_STEPS + 1)  # the usual one of an average over so many


class StepTime(NamedTuple):
    """One decode step."""

    batch_size: int
    seconds: float  # of the pass and of drawing from it


@dataclass(frozen=True)
class EngineSnapshot:
    """What happened between two calls of `EngineStats.take`.

    Attributes:
        steps: The latest decode steps, at most `MAX_KEPT`.
        queue_times_s: From arrival to first step, of the latest sequences that got a slot, at
            most `MAX_KEPT`.
        num_steps: Decode steps, also those that `steps` had no room for.
        num_sequence_steps: The same, counted once for each sequence of the batch.
        num_dropped_steps: Steps that are missing in `steps`.
        num_dropped_queue_times: Sequences that are missing in `queue_times_s`.
    """

    steps: tuple[StepTime, ...]
    queue_times_s: tuple[float, ...]
    num_steps: int
    num_sequence_steps: int
    num_dropped_steps: int
    num_dropped_queue_times: int


@dataclass
class _Collected:
    steps: deque[StepTime] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    queue_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    num_steps: int = 0
    num_sequence_steps: int = 0
    num_queue_times: int = 0


class EngineStats:
    """Collects on the engine's thread; any other may take what has been collected.

    The lock is held for a few assignments only, so a reader never holds a step up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collected = _Collected()
        self._step_s = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a decode step, an average of about the last 20; 0.0 before the first."""
        return self._step_s

    def add_step(self, batch_size: int, seconds: float) -> None:
        """Count a decode step of so many sequences."""
        if self._step_s:
            self._step_s += _NEW_STEP_WEIGHT * (seconds - self._step_s)
        else:
            self._step_s = seconds
        with self._lock:
            collected = self._collected
            collected.steps.append(StepTime(batch_size, seconds))
            collected.num_steps += 1
            collected.num_sequence_steps += batch_size

    def add_queue_time(self, seconds: float) -> None:
        """Count a sequence that waited so long for its first step."""
        with self._lock:
            self._collected.queue_times_s.append(seconds)
            self._collected.num_queue_times += 1

    def take(self) -> EngineSnapshot:
        """What has been collected since the last call, or the start; collecting begins anew."""
        fresh = _Collected()
        with self._lock:
            taken, self._collected = self._collected, fresh
        return EngineSnapshot(
            steps=tuple(taken.steps),
            queue_times_s=tuple(taken.queue_times_s),
            num_steps=taken.num_steps,
            num_sequence_steps=taken.num_sequence_steps,
            num_dropped_steps=taken.num_steps - len(taken.steps),
            num_dropped_queue_times=taken.num_queue_times - len(taken.queue_times_s),
        )
