"""What a measurement leaves behind: the JSON of all of it, and a table to be read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chattts_triton.load.capacity import Level
from chattts_triton.load.loops import Spoken
from chattts_triton.load.plan import LoadPlan
from chattts_triton.load.playout import play_out
from chattts_triton.load.run import LoadRun
from chattts_triton.load.summary import Spread, Summary, rtf_of

NO_VALUE = "-"
LEVEL_HEADER = (
    "streams", "requests", "under-runs", "silence s", "TTFA p95 s", "audio s/s", "refused", "failed"
)  # fmt: skip


def plan_as_json(plan: LoadPlan) -> dict[str, Any]:
    """What was asked; the texts by their number and their hash."""
    joined = "\n".join(plan.texts).encode()
    return {
        "loop": "closed" if plan.rate_per_s is None else "open",
        "concurrency": plan.concurrency,
        "rate_per_s": plan.rate_per_s,
        "requests": plan.num_requests,
        "warmup": plan.warmup,
        "seed": plan.seed,
        "texts": len(plan.texts),
        "texts_sha256": hashlib.sha256(joined).hexdigest(),
    }


def summary_as_json(summary: Summary) -> dict[str, Any]:
    """Every figure of a run."""
    return {**asdict(summary), "num_failed": summary.num_failed}


def takes_as_json(run: LoadRun, *, is_stream: bool) -> list[dict[str, Any]]:
    """Every request of a run; times count from the beginning of the load."""
    return [_take_as_json(one, run, is_stream) for one in run.spoken]


def _take_as_json(spoken: Spoken, run: LoadRun, is_stream: bool) -> dict[str, Any]:
    request, take = spoken.request, spoken.take
    entry: dict[str, Any] = {
        "index": request.index,
        "text": request.index % len(run.plan.texts),
        "seed": request.seed,
        "planned_s": spoken.planned_s - run.began_s,
        "began_s": spoken.began_s - run.began_s,
        "latency_s": spoken.latency_s,
        "audio_s": take.audio_s,
        "finish_reason": take.finish_reason,
        "failure": None if take.failure is None else asdict(take.failure),
    }
    if take.is_whole and take.num_samples:
        entry["rtf"] = rtf_of(spoken)
    if is_stream and take.arrivals:
        entry["mode"] = take.mode
        entry["ttfa_s"] = spoken.ttfa_s
        entry["chunks"] = [
            {"at_s": arrival.at_s - run.began_s, "samples": arrival.num_samples}
            for arrival in take.arrivals
        ]
        entry["underruns_samples"] = list(play_out(take.arrivals).underruns_samples)
    return entry


def summary_as_text(plan: LoadPlan, summary: Summary) -> str:
    """What `bench` prints of one run."""
    lines = [_headline(plan, summary), "", *_counts(summary), "", *_spreads(summary)]
    if summary.underruns is not None:
        lines += ["", _underruns(summary)]
    lines += [f"{kind}: {message}" for kind, message in summary.messages.items()]
    return "\n".join(lines) + "\n"


def level_row(level: Level) -> list[str]:
    """A row under `LEVEL_HEADER`."""
    summary = level.summary
    assert summary.underruns is not None
    return [
        str(level.concurrency),
        str(summary.num_requests),
        str(summary.underruns.count),
        f"{summary.underruns.silence_s:.3f}",
        NO_VALUE if summary.ttfa_s is None else f"{summary.ttfa_s.p95:.3f}",
        f"{summary.audio_seconds_per_second:.2f}",
        str(summary.num_refused),
        str(summary.num_failed),
    ]


def capacity_as_text(capacity: int, levels: Sequence[Level]) -> str:
    """What `bench --find-capacity` prints."""
    rows = [LEVEL_HEADER, *(level_row(level) for level in levels)]
    lines = [*aligned(rows), ""]
    messages = {kind: text for level in levels for kind, text in level.summary.messages.items()}
    lines += [f"{kind}: {message}" for kind, message in messages.items()]
    lines.append(f"capacity: {capacity} streams at a time without an under-run")
    return "\n".join(lines) + "\n"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equal length as lines: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _headline(plan: LoadPlan, summary: Summary) -> str:
    if plan.rate_per_s is None:
        load = f"closed loop, {plan.concurrency} at a time"
    else:
        limit = "" if plan.concurrency is None else f", at most {plan.concurrency} at a time"
        load = f"open loop, {plan.rate_per_s:g} a second{limit}"
    return (
        f"{load}: {summary.num_requests} requests in {summary.elapsed_s:.2f} s, "
        f"{plan.warmup} before them dropped"
    )


def _counts(summary: Summary) -> list[str]:
    failed = ", ".join(f"{count} {kind}" for kind, count in summary.failures.items())
    counts = [
        ("answered", str(summary.num_answered)),
        ("cut", str(summary.num_cut)),
        ("refused", str(summary.num_refused)),
        ("failed", failed or "0"),
        ("audio", f"{summary.audio_s:.2f} s, {summary.audio_seconds_per_second:.2f} s a second"),
    ]
    if summary.modes:
        counts.append(("modes", ", ".join(f"{n} {mode}" for mode, n in summary.modes.items())))
    return [f"{name:<10}{value}" for name, value in counts]


def _spreads(summary: Summary) -> list[str]:
    named: list[tuple[str, Spread | None]] = [
        ("latency s", summary.latency_s),
        ("RTF", summary.rtf),
    ]
    if summary.underruns is not None:
        named += [("TTFA s", summary.ttfa_s), ("gap s", summary.gap_s)]
    rows = [["", "median", "p95", "p99", "largest"]]
    for name, spread in named:
        values = () if spread is None else (spread.p50, spread.p95, spread.p99, spread.largest)
        rows.append([name, *([f"{value:.3f}" for value in values] or [NO_VALUE] * 4)])
    return aligned(rows)


def _underruns(summary: Summary) -> str:
    found = summary.underruns
    assert found is not None
    if not found.count:
        return f"under-runs: none in {summary.num_answered} streams"
    return (
        f"under-runs: {found.count} in {found.streams} of {summary.num_answered} streams, "
        f"{found.silence_s:.3f} s of silence, the longest {found.longest_s:.3f} s"
    )
