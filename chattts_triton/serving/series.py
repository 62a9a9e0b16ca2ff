"""Prometheus series of one process: they gather here, and one thread hands them to Triton.

An update of Triton's is a call to another process. It takes tens of microseconds, more where
threads compete for the interpreter, it may fail, and two threads must not update one series at
once. So nobody who serves a request makes one.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

LOGGER = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 0.2
MAX_OBSERVATIONS = 1000  # of one histogram in one round
ENSEMBLE_LABEL = "ensemble"


class Series(Protocol):
    """What the thread needs of a series."""

    def publish(self) -> None:
        """Hand over what has been gathered; may raise whatever Triton raises, and lose nothing."""

    def close(self) -> None:
        """Make the next `publish` the last one."""


AnySeries = TypeVar("AnySeries", bound=Series)


class Counter:
    """A sum that only grows; any thread may add to it."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._lock = threading.Lock()
        self._pending = 0.0

    def add(self, amount: float) -> None:
        """Let it grow by an amount of 0 or more."""
        with self._lock:
            self._pending += amount

    def publish(self) -> None:
        """See Series."""
        with self._lock:
            amount, self._pending = self._pending, 0.0
        if amount:
            try:
                self._metric.increment(amount)
            except BaseException:
                self.add(amount)
                raise

    def close(self) -> None:
        """See Series: what was counted stays."""


class Gauge:
    """A value that goes up and down; any thread may set it.

    Triton's series is the sum over all processes that have it: while a model is loaded again, the
    new process and the old one have it both. So what is published is by how much it changed.
    """

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._value = 0.0
        self._published = 0.0

    def set(self, value: float) -> None:
        """Let it be a value from now on."""
        self._value = value

    def publish(self) -> None:
        """See Series."""
        value = self._value
        if value != self._published:
            self._metric.increment(value - self._published)
            self._published = value

    def close(self) -> None:
        """See Series: takes this process's share back."""
        self._value = 0.0


class Histogram:
    """Observations by size; any thread may add one.

    Args:
        metric: Triton's.
        max_observations: The most that are handed over in one round. If there are more, they are
            sampled evenly over the round, so the shape and the mean stay, and the count does not.
    """

    def __init__(self, metric: Any, max_observations: int = MAX_OBSERVATIONS) -> None:
        self._metric = metric
        self._max_observations = max_observations
        self._lock = threading.Lock()
        self._pending: list[float] = []

    def observe(self, *values: float) -> None:
        """Add observations."""
        with self._lock:
            self._pending.extend(values)

    def publish(self) -> None:
        """See Series."""
        with self._lock:
            values, self._pending = self._sampled(), []
        num_done = 0
        try:
            for value in values:
                self._metric.observe(value)
                num_done += 1
        finally:
            if num_done < len(values):
                with self._lock:
                    self._pending[:0] = values[num_done:]

    def close(self) -> None:
        """See Series: what was observed stays."""

    def _sampled(self) -> list[float]:
        limit, total = self._max_observations, len(self._pending)
        if total <= limit:
            return self._pending
        return [self._pending[i * total // limit] for i in range(limit)]


class Metrics:
    """Makes the series of one process, and publishes them every PUBLISH_INTERVAL_S.

    Series are made before `start`, by one thread. What fails later is logged once and tried again
    in the next round.

    Args:
        pb_utils: Triton's module of that name.
        ensemble: The set of models, a label of every series.
        interval_s: Between two rounds.

    Raises:
        Exception: Triton's own, from the methods that make a series.
    """

    def __init__(
        self, pb_utils: Any, ensemble: str, *, interval_s: float = PUBLISH_INTERVAL_S
    ) -> None:
        self._kinds = pb_utils.MetricFamily
        self._ensemble = ensemble
        self._interval_s = interval_s
        self._families: dict[str, Any] = {}
        self._series: list[Series] = []
        self._collectors: list[Callable[[], None]] = []
        self._has_failed = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="metrics", daemon=True)

    def counter(self, name: str, description: str, **labels: str) -> Counter:
        """A new counter, at 0."""
        family = self._family(name, description, self._kinds.COUNTER)
        return self._added(Counter(family.Metric(labels=self._labels(labels))))

    def gauge(self, name: str, description: str, **labels: str) -> Gauge:
        """A new gauge, at 0."""
        family = self._family(name, description, self._kinds.GAUGE)
        return self._added(Gauge(family.Metric(labels=self._labels(labels))))

    def histogram(
        self,
        name: str,
        description: str,
        buckets: Sequence[float],
        *,
        max_observations: int = MAX_OBSERVATIONS,
        **labels: str,
    ) -> Histogram:
        """A new histogram; `buckets` are their upper bounds, in order."""
        family = self._family(name, description, self._kinds.HISTOGRAM)
        metric = family.Metric(labels=self._labels(labels), buckets=list(buckets))
        return self._added(Histogram(metric, max_observations))

    def collect(self, collector: Callable[[], None]) -> None:
        """Have `collector` called before each round, to fill series from elsewhere."""
        self._collectors.append(collector)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Publish once more, gauges as 0, and end the thread."""
        self._is_closing.set()
        self._thread.join()

    def _family(self, name: str, description: str, kind: Any) -> Any:
        if name not in self._families:
            family = self._kinds(name=name, description=description, kind=kind)
            # Triton shares a series between the processes that have it, yet the first one to let
            # go of it takes it from all: the next update by another ends tritonserver. Nobody may
            # let go, then, not even when the interpreter ends.
            # https://github.com/triton-inference-server/server/issues/8663
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(family))
            self._families[name] = family
        return self._families[name]

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {ENSEMBLE_LABEL: self._ensemble, **labels}

    def _added(self, series: AnySeries) -> AnySeries:
        self._series.append(series)
        return series

    def _loop(self) -> None:
        while not self._is_closing.wait(self._interval_s):
            self._run(self._collectors)
            self._run([series.publish for series in self._series])
        self._run(self._collectors)
        self._run([series.close for series in self._series])
        self._run([series.publish for series in self._series])

    def _run(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - no request may suffer, nor the next series
                if not self._has_failed:
                    self._has_failed = True
                    LOGGER.warning("metrics cannot be published: %r", error)
