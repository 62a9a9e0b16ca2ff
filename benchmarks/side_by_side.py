"""This server beside upstream ChatTTS, each in turns, in one run, on full-size random weights.

Latency alone, steps per second, throughput and latency at 1 to 16 clients, time to first audio,
memory, cold start, and the share of each stage. Writes JSON, and plots as SVG.
Usage: python benchmarks/side_by_side.py [--seconds S] [--rounds N] [--precision P] [--size S]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closed_loop import Cell, lasting_seeds, run_cell
from first_audio import NUM_ATTEMPTS, lasting_first_audio_s, our_first_audio_s
from machine import describe_machine
from memory import PeakMemory
from plots import write_plots
from prepared import RESULTS, ROOT, SIZES, Prepared, prepare
from side_by_side_tables import as_tables
from sides import Side, our_side, upstream_side
from stages import measure_stages
from steps import NUM_SEQS, TEXT, EngineSide, quiet_upstream, run_rounds
from tqdm import tqdm

from chattts_client import ChatTTSClient

CONCURRENCIES = (1, 2, 4, 8, 16)
NUM_CODES = 250  # of a request, 5.3 s of audio
NUM_STEPS = 150
MODES = ("low_latency", "quality")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and most of a few values."""
    values = list(values)
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def measure_cold_starts(prepared: Prepared, rounds: int) -> dict[str, Any]:
    """Seconds from the start of a server to its first answer, the sides in turns."""
    found: dict[str, list[float]] = {"ours": [], "upstream": []}
    for _ in tqdm(range(rounds), desc="cold starts", file=sys.stderr):
        with our_side(prepared.repository, TEXT, 1) as side:
            found["ours"].append(side.cold_start_s)
        with upstream_side(prepared.checkpoint, TEXT, 1) as side:
            found["upstream"].append(side.cold_start_s)
    return {name: spread(values) for name, values in found.items()}


def measure_cells(
    sides: dict[str, Side], seeds: Sequence[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """Each number of clients: the sides in turns, each for `seconds`."""
    result: dict[str, Any] = {}
    for concurrency in tqdm(CONCURRENCIES, desc="clients", file=sys.stderr):
        cells: dict[str, list[Cell]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                cells[name].append(
                    run_cell(side.speak, seeds, concurrency, seconds, side.drop_waiting)
                )
        result[str(concurrency)] = {
            **{name: cell_row(found) for name, found in cells.items()},
            "ratio": spread(
                ours.audio_seconds_per_second / theirs.audio_seconds_per_second
                for ours, theirs in zip(cells["ours"], cells["upstream"], strict=True)
            ),
        }
    return result


def cell_row(cells: Sequence[Cell]) -> dict[str, Any]:
    """One side at one number of clients; the latencies of all rounds together."""
    latencies_s = tuple(latency_s for cell in cells for latency_s in cell.latencies_s)
    whole = Cell(cells[0].concurrency, 1.0, 0.0, latencies_s)
    return {
        "requests": len(latencies_s),
        "dropped": sum(cell.num_dropped for cell in cells),
        "audio_seconds_per_second": spread(cell.audio_seconds_per_second for cell in cells),
        **{f"p{percent}_s": whole.latency_s(percent) for percent in (50, 95, 99)},
    }


def measure_first_audio(side: Side, chat: Any, rounds: int) -> dict[str, Any]:
    """Seconds to the first audio of each mode and of upstream's stream, in turns."""
    found: dict[str, list[float]] = {"upstream": [], **{mode: [] for mode in MODES}}
    with ChatTTSClient(side.url) as client:
        for mode in MODES:
            our_first_audio_s(client, TEXT, mode, seed=0)  # warms up
        for index in tqdm(range(rounds), desc="first audio", file=sys.stderr):
            found["upstream"].append(lasting_first_audio_s(chat, NUM_ATTEMPTS * index))
            for mode in MODES:
                found[mode].append(our_first_audio_s(client, TEXT, mode, seed=index))
    return {name: spread(values) for name, values in found.items()}


def measure_steps(prepared: Prepared, chat: Any, rounds: int) -> dict[str, Any]:
    """Steps per second, alone and at 8 sequences, in this process on both sides."""
    sides = {"ours": EngineSide(prepared.repository, NUM_STEPS)}
    result = {}
    for num_seqs in (1, NUM_SEQS):
        times = run_rounds(chat, sides, num_seqs, rounds, NUM_STEPS)["ours"]
        result[str(num_seqs)] = {
            "upstream": spread(NUM_STEPS / elapsed_s for elapsed_s in times.upstream),
            "ours": spread(NUM_STEPS / elapsed_s for elapsed_s in times.ours),
            "ratio": times.steps_ratio,
        }
    return result


def measure(rounds: int, seconds: float, precision: str, size: str) -> dict[str, Any]:
    prepared = prepare(precision, size)
    result: dict[str, Any] = {
        "command": command(rounds, seconds, precision, size),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": precision,
        "rounds": rounds,
        "seconds": seconds,
        "num_codes": NUM_CODES,
        "cold_start_s": measure_cold_starts(prepared, rounds),
    }
    arguments = (f"--max-num-seqs={max(CONCURRENCIES)}",)
    with our_side(prepared.repository, TEXT, NUM_CODES, arguments=arguments) as ours:
        with (
            upstream_side(prepared.checkpoint, TEXT, NUM_CODES) as upstream,
            PeakMemory(ours.pid) as our_memory,
            PeakMemory(upstream.pid) as upstream_memory,
        ):
            seeds = lasting_seeds(ours.speak, NUM_CODES, max(CONCURRENCIES))
            sides = {"ours": ours, "upstream": upstream}
            result["clients"] = measure_cells(sides, seeds, rounds, seconds)
        result["peak_pss_mb"] = {
            "ours": our_memory.peak_mb,
            "upstream": upstream_memory.peak_mb,
        }
        chat = quiet_upstream(prepared.checkpoint)
        result["first_audio_s"] = measure_first_audio(ours, chat, rounds + 1)
        result["stages_s"] = measure_stages(prepared.repository, NUM_CODES, ours.speak)
    result["steps_per_second"] = measure_steps(prepared, chat, rounds)
    return result


def command(rounds: int, seconds: float, precision: str, size: str) -> str:
    tried_out = "" if size == "full" else f" --size {size}"
    return (
        f"python benchmarks/side_by_side.py --seconds {seconds:g} --rounds {rounds} "
        f"--precision {precision}{tried_out}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of each side and cell")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--size", choices=SIZES, default="full")
    args = parser.parse_args()
    result = measure(args.rounds, args.seconds, args.precision, args.size)
    # Figures of the small stand-in say nothing, so they are kept apart.
    directory: Path = RESULTS if args.size == "full" else ROOT / "build" / "side_by_side"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "side_by_side.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    plots = write_plots(result, directory)
    print(as_tables(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")
    for plot in plots:
        print(f"written to {plot.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
