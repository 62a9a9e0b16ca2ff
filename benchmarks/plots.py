"""The comparison as plots, each an SVG file that depends on the figures alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIDES = {"ours": "#1b6ca8", "upstream": "#c4622d"}
STAGES = ("#1b6ca8", "#5b9bc8", "#c4622d", "#e3a06d", "#4b8b5a", "#9ac29e", "#8c8c8c")
INCHES = (6.0, 3.6)
# Otherwise each run names its elements anew, and the files differ in all lines.
STYLE = {"svg.hashsalt": "chattts-triton", "svg.fonttype": "none", "font.size": 9}


def write_plots(result: dict[str, Any], directory: Path) -> list[Path]:
    """Write all plots and return where they are.

    Args:
        result: Of `side_by_side.py`.
        directory: Exists.
    """
    plots: dict[str, Callable[[Axes, dict[str, Any]], None]] = {
        "throughput": throughput,
        "latency": latency,
        "first_audio": first_audio,
        "stages": stages,
    }
    paths = []
    with mpl.rc_context(STYLE):
        for name, draw in plots.items():
            figure = Figure(figsize=INCHES, layout="constrained")
            draw(figure.subplots(), result)
            paths.append(directory / f"side_by_side_{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def throughput(axes: Axes, result: dict[str, Any]) -> None:
    """Audio seconds per second against the number of clients."""
    _against_clients(axes, result, lambda row: row["audio_seconds_per_second"]["median"])
    axes.set(title="Throughput", ylabel="audio seconds per second", yscale="log")


def latency(axes: Axes, result: dict[str, Any]) -> None:
    """95th percentile of the latency against the number of clients, lower bounds hollow."""
    _against_clients(axes, result, lambda row: row["p95_s"])
    for side, color in SIDES.items():
        for concurrency, row in result["clients"].items():
            if row[side]["dropped"]:
                point = int(concurrency), row[side]["p95_s"]
                axes.plot(*point, marker="^", color=color, markerfacecolor="white", zorder=3)
    axes.set(
        title="Latency of whole requests (hollow: at least)",
        ylabel="95th percentile, s",
        yscale="log",
    )


def first_audio(axes: Axes, result: dict[str, Any]) -> None:
    """Time to first audio, a bar for each way to stream."""
    found = result["first_audio_s"]
    names = sorted(found, key=lambda name: found[name]["median"])
    values = [found[name]["median"] for name in names]
    colors = [SIDES["upstream" if name == "upstream" else "ours"] for name in names]
    axes.bar_label(axes.barh(names, values, color=colors), fmt="%.2f s", padding=3)
    axes.margins(x=0.15)
    axes.set(title="Time to first audio", xlabel="s")


def stages(axes: Axes, result: dict[str, Any]) -> None:
    """What each stage takes of a lone request."""
    found = result["stages_s"]
    whole_s = sum(found.values())
    shares = [100 * stage_s / whole_s for stage_s in found.values()]
    bars = axes.barh(list(found), shares, color=STAGES[: len(found)])
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(title="Share of the time of a lone request", xlabel="%")


def _against_clients(
    axes: Axes, result: dict[str, Any], value: Callable[[dict[str, Any]], float]
) -> None:
    clients = result["clients"]
    for side, color in SIDES.items():
        axes.plot(
            [int(concurrency) for concurrency in clients],
            [value(row[side]) for row in clients.values()],
            marker="o",
            color=color,
            label=side,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([int(concurrency) for concurrency in clients], labels=list(clients))
    axes.set_xlabel("clients")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
