"""What is counted, and how it reaches Triton: over a stand-in of its metrics that behaves alike."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from chattts_triton.errors import DeadlineExceededError, InvalidRequestError
from chattts_triton.serving.metrics import (
    BATCH_SIZES,
    FIRST_AUDIO_SECONDS,
    MAX_OBSERVED_STEPS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    STEP_SECONDS,
    EngineMetrics,
    RequestMetrics,
)
from chattts_triton.serving.record import OUTCOMES, RequestRecord
from chattts_triton.serving.series import MAX_OBSERVATIONS, Metrics

TIMEOUT_S = 10.0
NEVER_S = 3600.0  # between rounds, where only the last one is of interest


@dataclass
class Metric:
    """One series of Triton's, kept to its rules."""

    kind: str
    buckets: list[float] | None
    value: float = 0.0
    observed: list[float] = field(default_factory=list)
    num_updates: int = 0
    num_failures_left: int = 0
    thread_names: set[str] = field(default_factory=set)
    updated: threading.Event = field(default_factory=threading.Event)

    def increment(self, amount: float) -> None:
        assert self.kind == "gauge" or (self.kind == "counter" and amount >= 0)
        self._update()
        self.value += amount
        self.updated.set()

    def observe(self, value: float) -> None:
        assert self.kind == "histogram"
        self._update()
        self.observed.append(value)
        self.updated.set()

    def _update(self) -> None:
        self.num_updates += 1
        self.thread_names.add(threading.current_thread().name)
        if self.num_failures_left:
            self.num_failures_left -= 1
            raise RuntimeError("the server is gone")


class Triton:
    """Its metrics, shared by all processes: the same name and labels are the same series."""

    def __init__(self) -> None:
        self.series: dict[str, Metric] = {}
        self.kinds: dict[str, tuple[str, str]] = {}  # and help texts, of the families
        triton = self

        class MetricFamily:
            COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

            def __init__(self, *, name: str, description: str, kind: str) -> None:
                assert triton.kinds.setdefault(name, (kind, description)) == (kind, description)
                self._name, self._kind = name, kind

            def Metric(  # noqa: N802 - Triton's name
                self, *, labels: dict[str, str], buckets: list[float] | None = None
            ) -> Metric:
                assert (self._kind == "histogram") == (buckets is not None)
                inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
                metric = Metric(self._kind, buckets)
                return triton.series.setdefault(f"{self._name}{{{inner}}}", metric)

        self.pb_utils = SimpleNamespace(MetricFamily=MetricFamily)

    def of(self, name: str, **labels: str) -> Metric:
        """The only series of a name that has these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        (found,) = (
            metric
            for key, metric in self.series.items()
            if key.startswith(f"{name}{{") and all(label in key for label in wanted)
        )
        return found


@dataclass
class Engine:
    """What EngineMetrics looks at; `stats` gives what was collected once."""

    num_running_requests: int = 0
    num_waiting_requests: int = 0
    num_running: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)
    queue_times_s: list[float] = field(default_factory=list)
    num_dropped: int = 0

    @property
    def stats(self) -> Engine:
        return self

    def take(self) -> Snapshot:
        taken = Snapshot(
            self.steps, self.queue_times_s, num_steps=len(self.steps) + self.num_dropped
        )
        self.steps, self.queue_times_s, self.num_dropped = [], [], 0
        return taken


@dataclass(frozen=True)
class Snapshot:
    steps: Sequence[tuple[int, float]]
    queue_times_s: Sequence[float]
    num_steps: int


@pytest.fixture
def triton() -> Triton:
    return Triton()


@pytest.fixture
def metrics(triton: Triton) -> Metrics:
    """A process that publishes when it ends, and not before."""
    return Metrics(triton.pb_utils, "chattts", interval_s=NEVER_S)


def publish_and_end(metrics: Metrics) -> None:
    metrics.start()
    metrics.close()


def a_record(**values: Any) -> RequestRecord:
    return RequestRecord(**{"id": "", "arrival_s": time.monotonic() - 2.5, **values})


def test_every_outcome_is_there_at_0_from_the_start(triton: Triton, metrics: Metrics):
    RequestMetrics(metrics, "chattts")

    for outcome in OUTCOMES:
        series = triton.of("chattts_requests_total", outcome=outcome, model="chattts")
        assert series.value == 0


def test_every_series_has_the_name_of_its_set(triton: Triton):
    metrics = Metrics(triton.pb_utils, "other")
    RequestMetrics(metrics, "other_stream")
    EngineMetrics(metrics, Engine(), 4, {"version": "1"})

    assert all('ensemble="other"' in name for name in triton.series)


def test_names_follow_the_conventions_of_prometheus(triton: Triton):
    metrics = Metrics(triton.pb_utils, "chattts")
    RequestMetrics(metrics, "chattts")
    EngineMetrics(metrics, Engine(), 4, {"version": "1"})

    assert set(triton.kinds) == {
        "chattts_requests_total",
        "chattts_running_requests",
        "chattts_waiting_requests",
        "chattts_slots",
        "chattts_slots_used",
        "chattts_batch_size",
        "chattts_step_seconds",
        "chattts_queue_seconds",
        "chattts_time_to_first_audio_seconds",
        "chattts_request_seconds",
        "chattts_steps_total",
        "chattts_audio_seconds_total",
        "chattts_characters_total",
        "chattts_finish_reasons_total",
        "chattts_build_info",
    }
    for name, (kind, description) in triton.kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert description.endswith("."), name


@pytest.mark.parametrize(
    "buckets", [BATCH_SIZES, STEP_SECONDS, QUEUE_SECONDS, FIRST_AUDIO_SECONDS, REQUEST_SECONDS]
)
def test_buckets_grow(buckets: Sequence[float]):
    assert list(buckets) == sorted(set(buckets))


def test_a_request_that_ended_well_is_counted_in_full(triton: Triton, metrics: Metrics):
    requests = RequestMetrics(metrics, "chattts")
    record = a_record(num_texts=3, num_cut=1, characters=40, audio_s=6.5)
    record.end()

    requests.count(record)
    publish_and_end(metrics)

    assert triton.of("chattts_requests_total", outcome="ok").value == 1
    assert triton.of("chattts_finish_reasons_total", reason="stop").value == 2
    assert triton.of("chattts_finish_reasons_total", reason="length").value == 1
    assert triton.of("chattts_characters_total").value == 40
    assert triton.of("chattts_audio_seconds_total").value == 6.5
    (total_s,) = triton.of("chattts_request_seconds", model="chattts").observed
    assert total_s == pytest.approx(2.5, abs=1)
    assert triton.of("chattts_time_to_first_audio_seconds").observed == [total_s]


def test_a_request_that_failed_is_counted_by_its_outcome_only(triton: Triton, metrics: Metrics):
    requests = RequestMetrics(metrics, "chattts")
    record = a_record(num_texts=1, characters=40)
    record.end(InvalidRequestError("TEXT: missing"))

    requests.count(record)
    publish_and_end(metrics)

    assert triton.of("chattts_requests_total", outcome="invalid").value == 1
    touched = [name for name, series in triton.series.items() if series.num_updates]
    assert len(touched) == 1


def test_what_a_stream_sent_before_it_failed_is_counted(triton: Triton, metrics: Metrics):
    requests = RequestMetrics(metrics, "chattts_stream")
    record = a_record(stream=True, num_texts=1, characters=40, audio_s=1.5, ttfa_ms=80.0)
    record.end(DeadlineExceededError("too late"))

    requests.count(record)
    publish_and_end(metrics)

    assert triton.of("chattts_requests_total", outcome="deadline").value == 1
    assert triton.of("chattts_audio_seconds_total").value == 1.5
    assert triton.of("chattts_time_to_first_audio_seconds").observed == [0.08]
    assert triton.of("chattts_request_seconds").observed == []
    assert triton.of("chattts_characters_total").value == 0


def test_requests_of_many_threads_are_all_counted_by_the_one_that_publishes(triton: Triton):
    metrics = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    requests = RequestMetrics(metrics, "chattts")
    metrics.start()

    def count() -> None:
        for _ in range(200):
            record = a_record(num_texts=1, characters=2)
            record.end()
            requests.count(record)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    metrics.close()

    assert triton.of("chattts_requests_total", outcome="ok").value == 800
    assert triton.of("chattts_characters_total").value == 1600
    assert len(triton.of("chattts_request_seconds").observed) == 800
    names = set().union(*(series.thread_names for series in triton.series.values()))
    assert names == {"metrics"}


def test_it_publishes_without_being_asked(triton: Triton):
    metrics = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    requests = RequestMetrics(metrics, "chattts")
    metrics.start()
    record = a_record()
    record.end()

    requests.count(record)

    assert triton.of("chattts_requests_total", outcome="ok").updated.wait(TIMEOUT_S)
    metrics.close()


def test_the_engine_is_published_as_it_is(triton: Triton):
    metrics = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    engine = Engine(num_running_requests=2, num_waiting_requests=3, num_running=5)
    engine.steps = [(5, 0.25), (4, 0.125)]
    engine.queue_times_s = [0.5]
    EngineMetrics(metrics, engine, 8, {"version": "1.2", "precision": "int8"})

    metrics.start()
    assert triton.of("chattts_queue_seconds").updated.wait(TIMEOUT_S)

    assert triton.of("chattts_running_requests").value == 2
    assert triton.of("chattts_waiting_requests").value == 3
    assert triton.of("chattts_slots").value == 8
    assert triton.of("chattts_slots_used").value == 5
    assert triton.of("chattts_build_info", version="1.2", precision="int8").value == 1
    assert triton.of("chattts_steps_total").value == 2
    assert triton.of("chattts_batch_size").observed == [5, 4]
    assert triton.of("chattts_step_seconds").observed == [0.25, 0.125]
    assert triton.of("chattts_queue_seconds").observed == [0.5]
    metrics.close()


def test_what_does_not_change_is_not_published_again(triton: Triton):
    metrics = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    EngineMetrics(metrics, Engine(num_running=5), 8, {})
    rounds = threading.Semaphore(0)
    metrics.collect(rounds.release)

    metrics.start()
    for _ in range(10):
        assert rounds.acquire(timeout=TIMEOUT_S)

    assert triton.of("chattts_slots_used").num_updates == 1
    assert triton.of("chattts_steps_total").num_updates == 0
    metrics.close()


def test_the_last_steps_are_published_and_the_gauges_end_at_0(triton: Triton, metrics: Metrics):
    engine = Engine(num_running_requests=1, num_running=1)
    EngineMetrics(metrics, engine, 8, {})
    engine.steps = [(1, 0.5)]

    publish_and_end(metrics)

    assert triton.of("chattts_steps_total").value == 1
    for name in ("running_requests", "waiting_requests", "slots", "slots_used", "build_info"):
        assert triton.of(f"chattts_{name}").value == 0


def test_a_model_that_is_loaded_again_takes_the_gauges_over(triton: Triton):
    """Triton starts the new process before it ends the old one, and both have the same series."""
    old = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    EngineMetrics(old, Engine(num_running=3), 16, {"version": "1"})
    old.start()
    assert triton.of("chattts_slots").updated.wait(TIMEOUT_S)

    triton.of("chattts_slots_used").updated.clear()
    new = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    EngineMetrics(new, Engine(num_running=2), 8, {"version": "2"})
    new.start()
    assert triton.of("chattts_slots_used").updated.wait(TIMEOUT_S)
    old.close()

    assert triton.of("chattts_slots_used").value == 2
    assert triton.of("chattts_slots").value == 8
    assert triton.of("chattts_build_info", version="1").value == 0
    new.close()
    assert triton.of("chattts_slots").value == 0


def test_of_many_steps_a_sample_is_observed_and_all_are_counted(triton: Triton, metrics: Metrics):
    engine = Engine(num_dropped=7)
    EngineMetrics(metrics, engine, 8, {})
    total = MAX_OBSERVED_STEPS * 10
    engine.steps = [(1 + i // (total // 2), i / total) for i in range(total)]

    publish_and_end(metrics)

    assert triton.of("chattts_steps_total").value == total + 7
    sizes = triton.of("chattts_batch_size").observed
    assert sizes == [1] * (MAX_OBSERVED_STEPS // 2) + [2] * (MAX_OBSERVED_STEPS // 2)
    seconds = triton.of("chattts_step_seconds").observed
    assert seconds == [i / MAX_OBSERVED_STEPS for i in range(MAX_OBSERVED_STEPS)]


def test_so_many_requests_as_a_server_can_end_in_a_round_are_all_observed(
    triton: Triton, metrics: Metrics
):
    histogram = metrics.histogram("seconds", "Time.", [1.0])

    for i in range(MAX_OBSERVATIONS):
        histogram.observe(i)
    publish_and_end(metrics)

    assert triton.of("seconds").observed == list(range(MAX_OBSERVATIONS))


@pytest.mark.parametrize("name", ["requests_total", "request_seconds", "slots"])
def test_what_could_not_be_published_is_published_later(
    triton: Triton, caplog: pytest.LogCaptureFixture, name: str
):
    metrics = Metrics(triton.pb_utils, "chattts", interval_s=0.001)
    requests = RequestMetrics(metrics, "chattts")
    EngineMetrics(metrics, Engine(), 8, {})
    labels = {"outcome": "ok"} if name == "requests_total" else {}
    triton.of(f"chattts_{name}", **labels).num_failures_left = 3
    for _ in range(2):
        record = a_record()
        record.end()
        requests.count(record)

    metrics.start()
    assert triton.of(f"chattts_{name}", **labels).updated.wait(TIMEOUT_S)
    metrics.close()

    assert triton.of("chattts_requests_total", outcome="ok").value == 2
    assert len(triton.of("chattts_request_seconds").observed) == 2
    assert triton.of("chattts_slots").value == 0
    (logged,) = caplog.records
    assert logged.getMessage() == (
        "metrics cannot be published: RuntimeError('the server is gone')"
    )


def test_an_engine_that_cannot_be_asked_holds_no_other_series_up(triton: Triton, metrics: Metrics):
    class Broken(Engine):
        @property
        def stats(self) -> Engine:
            raise RuntimeError("broken")

    requests = RequestMetrics(metrics, "chattts")
    EngineMetrics(metrics, Broken(), 8, {})
    record = a_record()
    record.end()

    requests.count(record)
    publish_and_end(metrics)

    assert triton.of("chattts_requests_total", outcome="ok").value == 1


def test_a_series_is_never_let_go_of(triton: Triton):
    """The first process to do so would take it from all others, and end tritonserver with it."""
    ended: list[str] = []

    class Family(triton.pb_utils.MetricFamily):  # type: ignore[name-defined, misc]
        def __del__(self) -> None:
            ended.append("family")

    metrics = Metrics(SimpleNamespace(MetricFamily=Family), "chattts")
    metrics.counter("a_total", "A.")

    del metrics
    gc.collect()

    assert ended == []
