"""The comparison as Markdown, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

STAGES = {
    "preprocess": "reading the text",
    "prefill": "running the prompt",
    "session": "ONNX Runtime's call of each step",
    "engine": "the rest of each step: embedding, drawing, bookkeeping",
    "waveform": "hidden states to audio",
    "pcm16": "conversion to 16 bits",
    "rest": "Triton, the copies between its processes, gRPC, the client",
}


def as_tables(result: dict[str, Any]) -> str:
    """All tables."""
    return "\n\n".join(
        [
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            throughput(result["clients"]),
            latencies(result["clients"]),
            others(result),
            stages(result["stages_s"]),
        ]
    )


def throughput(clients: dict[str, Any]) -> str:
    return table(
        "clients|ours: audio s/s|upstream: audio s/s|ours / upstream",
        (
            [
                concurrency,
                between(row["ours"]["audio_seconds_per_second"]),
                between(row["upstream"]["audio_seconds_per_second"]),
                between(row["ratio"]),
            ]
            for concurrency, row in clients.items()
        ),
    )


def latencies(clients: dict[str, Any]) -> str:
    return table(
        "clients|side|requests|p50 s|p95 s|p99 s",
        (
            [
                concurrency,
                side,
                row[side]["requests"],
                *(latency(row[side], percent) for percent in (50, 95, 99)),
            ]
            for concurrency, row in clients.items()
            for side in ("ours", "upstream")
        ),
    )


def latency(row: dict[str, Any], percent: int) -> str:
    """A percentile; a lower bound of it where requests that waited were dropped."""
    return f"{'at least ' if row['dropped'] else ''}{row[f'p{percent}_s']:.2f}"


def others(result: dict[str, Any]) -> str:
    first, start, memory = (result[key] for key in ("first_audio_s", "cold_start_s", "peak_pss_mb"))
    return table(
        "what|ours|upstream",
        [
            *(
                [
                    f"steps/s, batch of {num_seqs}",
                    between(row["ours"]),
                    f"{between(row['upstream'])}; ours {row['ratio']:.2f} times as many",
                ]
                for num_seqs, row in result["steps_per_second"].items()
            ),
            [
                "first audio s, `low_latency`",
                between(first["low_latency"]),
                between(first["upstream"]),
            ],
            ["first audio s, `quality`", between(first["quality"]), between(first["upstream"])],
            ["cold start s", between(start["ours"]), between(start["upstream"])],
            ["peak PSS MB", f"{memory['ours']:.0f}", f"{memory['upstream']:.0f}"],
        ],
    )


def stages(found: dict[str, float]) -> str:
    whole_s = sum(found.values())
    return table(
        "stage|ms|share|what it is",
        (
            [name, f"{1e3 * found[name]:.1f}", f"{100 * found[name] / whole_s:.1f} %", meaning]
            for name, meaning in STAGES.items()
        ),
    )


def between(spread: dict[str, float]) -> str:
    """A median, and the least and the most that it is the median of."""
    return f"{spread['median']:.2f} ({spread['least']:.2f} to {spread['most']:.2f})"


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the columns' heads are separated by bars."""
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
