"""What perf_analyzer reports, what the engine counted meanwhile, and both as one table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FAILED_OUTCOMES = ("invalid", "refused", "cancelled", "deadline", "error")

# Of its CSV report; times are in microseconds.
COLUMNS = {
    "infer_per_second": "Inferences/Second",
    "p50_us": "p50 latency",
    "p90_us": "p90 latency",
    "p95_us": "p95 latency",
    "p99_us": "p99 latency",
    "client_send_us": "Client Send",
    "network_us": "Network+Server Send/Recv",
    "server_queue_us": "Server Queue",
    "compute_input_us": "Server Compute Input",
    "compute_infer_us": "Server Compute Infer",
    "compute_output_us": "Server Compute Output",
    "client_recv_us": "Client Recv",
}

# Of the table: what is shown, by the head of its column. A key that ends in _us is shown in ms.
SHOWN = {
    "infer/s": "infer_per_second",
    "p50 ms": "p50_us",
    "p90 ms": "p90_us",
    "p95 ms": "p95_us",
    "p99 ms": "p99_us",
    "network ms": "network_us",
    "queue ms": "server_queue_us",
    "input ms": "compute_input_us",
    "infer ms": "compute_infer_us",
    "output ms": "compute_output_us",
    "engine request ms": "engine_request_ms",
    "engine queue ms": "engine_queue_ms",
    "engine step ms": "engine_step_ms",
    "engine batch": "engine_batch_size",
}

_SAMPLE = re.compile(r"(?m)^(chattts_\w+)(?:\{([^}]*)\})? (\S+)$")
_OUTCOME = re.compile(r'outcome="(\w+)"')


def read_report(text: str) -> dict[str, Any]:
    """One row of the CSV report, by our names.

    Raises:
        ValueError: It does not hold one row, or lacks a column; the message names it.
    """
    rows = list(csv.DictReader(io.StringIO(text.strip())))
    if len(rows) != 1:
        raise ValueError(f"perf_analyzer's report: {len(rows)} rows, wanted 1")
    try:
        return {key: float(rows[0][column]) for key, column in COLUMNS.items()}
    except KeyError as error:
        raise ValueError(f"perf_analyzer's report: no column {error}") from None


@dataclass(frozen=True)
class Scrape:
    """The sums of `chattts_` metrics at one time, by name, and requests by their outcome."""

    values: dict[str, float]
    outcomes: dict[str, int]

    @classmethod
    def of(cls, page: str) -> Scrape:
        """Read `/metrics`; series that differ in their labels are added up."""
        values: dict[str, float] = {}
        outcomes: dict[str, int] = {}
        for name, labels, value in _SAMPLE.findall(page):
            values[name] = values.get(name, 0.0) + float(value)
            if name == "chattts_requests_total" and (outcome := _OUTCOME.search(labels)):
                outcomes[outcome[1]] = outcomes.get(outcome[1], 0) + int(float(value))
        return cls(values, outcomes)

    @property
    def num_requests(self) -> int:
        """Requests that have ended, whatever their outcome."""
        return sum(self.outcomes.values())

    @property
    def num_failed(self) -> int:
        """Those that ended without their audio."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILED_OUTCOMES)


def engine_row(before: Scrape, after: Scrape) -> dict[str, Any]:
    """What the engine says of the requests between two scrapes."""
    return {
        "answered": after.outcomes.get("ok", 0) - before.outcomes.get("ok", 0),
        "failed": after.num_failed - before.num_failed,
        "engine_request_ms": 1e3 * _mean(before, after, "chattts_request_seconds"),
        "engine_queue_ms": 1e3 * _mean(before, after, "chattts_queue_seconds"),
        "engine_step_ms": 1e3 * _mean(before, after, "chattts_step_seconds"),
        "engine_batch_size": _mean(before, after, "chattts_batch_size"),
    }


def as_table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            "",
            _line(["clients", *SHOWN]),
            _line(["---"] * (len(SHOWN) + 1)),
            *(
                _line([concurrency, *(_shown(key, row[key]) for key in SHOWN.values())])
                for concurrency, row in result["levels"].items()
            ),
        ]
    )


def _shown(key: str, value: float) -> str:
    return f"{value / 1e3 if key.endswith('_us') else value:.2f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(before: Scrape, after: Scrape, name: str) -> float:
    """Of a histogram: the mean of what was observed between two scrapes; 0.0 of nothing."""
    total, count = (
        after.values.get(f"{name}_{part}", 0.0) - before.values.get(f"{name}_{part}", 0.0)
        for part in ("sum", "count")
    )
    return total / count if count else 0.0
