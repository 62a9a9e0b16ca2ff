"""The table of `benchmarks/queue_delay.py`, from its result file."""

from __future__ import annotations

from typing import Any

HEADER = (
    "| requests/s | delay ms | TTFA median s | TTFA p95 s | latency median s | latency p95 s "
    "| audio s/s | refused |"
)


def as_table(result: dict[str, Any]) -> str:
    """The command, then a row for each rate and delay."""
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        HEADER,
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['rate_per_s']:g} | {row['delay_us'] / 1000:g} "
            f"| {row['ttfa_s']['p50']:.3f} | {row['ttfa_s']['p95']:.3f} "
            f"| {row['latency_s']['p50']:.3f} | {row['latency_s']['p95']:.3f} "
            f"| {row['audio_seconds_per_second']:.2f} | {row['num_refused']} |"
        )
    return "\n".join(lines)
