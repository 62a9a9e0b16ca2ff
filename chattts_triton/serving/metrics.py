"""The names of the Prometheus metrics, what they count, and where their values come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from chattts_triton.serving.record import OK, OUTCOMES, RequestRecord
from chattts_triton.serving.series import Metrics

FINISH_REASONS = ("stop", "length")

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
QUEUE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)
FIRST_AUDIO_SECONDS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)

# A small model makes a thousand steps a second, and each observation costs the engine's thread
# its interpreter for a moment.
MAX_OBSERVED_STEPS = 32


class RequestMetrics:
    """What is counted of each request, in the process where it ends; any thread may call it.

    Args:
        metrics: Of the process.
        model: What the caller called, the label `model`.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._outcomes = {
            outcome: metrics.counter(
                "chattts_requests_total",
                "Requests that ended, by how they ended.",
                model=model,
                outcome=outcome,
            )
            for outcome in OUTCOMES
        }
        self._finish_reasons = {
            reason: metrics.counter(
                "chattts_finish_reasons_total",
                "Texts that were spoken: to their end (stop), or cut at their limit (length).",
                reason=reason,
            )
            for reason in FINISH_REASONS
        }
        self._audio_s = metrics.counter(
            "chattts_audio_seconds_total",
            "Seconds of audio that were sent, in streams that did not end well too.",
        )
        self._characters = metrics.counter(
            "chattts_characters_total", "Characters of the texts that were spoken to their end."
        )
        self._first_audio_s = metrics.histogram(
            "chattts_time_to_first_audio_seconds",
            "From the arrival of a request until its first audio left; "
            "of a call with one answer, until the answer left.",
            FIRST_AUDIO_SECONDS,
            model=model,
        )
        self._request_s = metrics.histogram(
            "chattts_request_seconds",
            "From the arrival of a request until its last audio left, where it ended well.",
            REQUEST_SECONDS,
            model=model,
        )

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self._outcomes[record.outcome].add(1)
        self._audio_s.add(record.audio_s)
        if record.ttfa_ms is not None:
            self._first_audio_s.observe(record.ttfa_ms / 1000)
        if record.outcome == OK and record.total_ms is not None:
            self._request_s.observe(record.total_ms / 1000)
            self._characters.add(record.characters)
            self._finish_reasons["length"].add(record.num_cut)
            self._finish_reasons["stop"].add(max(record.num_texts - record.num_cut, 0))


class StepStats(Protocol):
    """What happened in the engine since it was last asked."""

    @property
    def steps(self) -> Sequence[tuple[int, float]]:
        """Decode steps, oldest first: size of the batch, and seconds. Some may be missing."""

    @property
    def queue_times_s(self) -> Sequence[float]:
        """Of each sequence that took its first step: the seconds from its arrival to it."""

    @property
    def num_steps(self) -> int:
        """Decode steps, all of them."""


class StatsSource(Protocol):
    """Collects StepStats."""

    def take(self) -> StepStats:
        """What was collected; it begins anew."""


class EngineView(Protocol):
    """What is read of the engine, from another thread."""

    @property
    def num_running_requests(self) -> int:
        """Requests of which a sequence has a slot."""

    @property
    def num_waiting_requests(self) -> int:
        """Requests all of whose sequences wait."""

    @property
    def num_running(self) -> int:
        """Slots in use."""

    @property
    def stats(self) -> StatsSource:
        """Its steps and queue times."""


class EngineMetrics:
    """Publishes the state of the engine and its steps.

    At most MAX_OBSERVED_STEPS steps are observed in one round, evenly sampled; their total is
    exact.

    Args:
        metrics: Of the process; this must be made before it is started.
        engine: What is looked at in every round.
        num_slots: Of the engine.
        build: Labels of `chattts_build_info`, such as version and precision.
    """

    def __init__(
        self, metrics: Metrics, engine: EngineView, num_slots: int, build: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._num_slots = num_slots
        self._running = metrics.gauge(
            "chattts_running_requests", "Requests that are being spoken: they have a slot."
        )
        self._waiting = metrics.gauge(
            "chattts_waiting_requests", "Requests that wait for their first slot."
        )
        self._slots = metrics.gauge("chattts_slots", "Sequences that can run at the same time.")
        self._slots_used = metrics.gauge("chattts_slots_used", "Sequences that run.")
        self._build = metrics.gauge("chattts_build_info", "1, with what is served.", **build)
        self._num_steps = metrics.counter("chattts_steps_total", "Decode steps of the engine.")
        self._batch_size = metrics.histogram(
            "chattts_batch_size",
            "Sequences in a decode step; of many steps, a sample.",
            BATCH_SIZES,
            max_observations=MAX_OBSERVED_STEPS,
        )
        self._step_s = metrics.histogram(
            "chattts_step_seconds",
            "Duration of a decode step; of many steps, a sample.",
            STEP_SECONDS,
            max_observations=MAX_OBSERVED_STEPS,
        )
        self._queue_s = metrics.histogram(
            "chattts_queue_seconds",
            "From the arrival of a sequence in the queue to its first step.",
            QUEUE_SECONDS,
        )
        metrics.collect(self._collect)

    def _collect(self) -> None:
        engine = self._engine
        self._running.set(engine.num_running_requests)
        self._waiting.set(engine.num_waiting_requests)
        self._slots.set(self._num_slots)
        self._slots_used.set(engine.num_running)
        self._build.set(1)
        stats = engine.stats.take()
        self._num_steps.add(stats.num_steps)
        self._batch_size.observe(*(batch_size for batch_size, _ in stats.steps))
        self._step_s.observe(*(seconds for _, seconds in stats.steps))
        self._queue_s.observe(*stats.queue_times_s)
