"""The figures of design.md in under five minutes: this server against upstream, each in turns.

Usage: python benchmarks/quick.py [--size full|tiny]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from datetime import UTC, datetime
from typing import Any

from closed_loop import lasting_seeds, run_cell
from first_audio import NUM_ATTEMPTS, lasting_first_audio_s, our_first_audio_s
from floor import read_bandwidth, session_over_floor, weight_bytes
from machine import describe_machine
from prepared import RESULTS, ROOT, SIZES, prepare
from sides import our_side, upstream_side
from steps import NUM_SEQS, TEXT, EngineSide, peak_memory_mb, quiet_upstream, run_rounds
from tqdm import tqdm

from chattts_client import ChatTTSClient
from chattts_triton.config import num_threads
from chattts_triton.manifest import load_manifest

MEANINGS = {
    "steps_ratio_fp32": "steps per second over upstream's, one sequence, fp32",
    "steps_ratio_int8": "the same, int8",
    "steps_ratio_int8_fast": "the same, int8, `exact_batching` off",
    "steps_ratio_fp32_b8": "the same, 8 sequences, fp32",
    "throughput_ratio_16": "audio seconds per second of whole requests over upstream's, "
    "16 clients, int8",
    "ttfa_ratio": "time to first audio of upstream's stream over ours, `low_latency`, int8",
    "step_over_session": "engine's decode step over the bare session call, one sequence, int8",
    "session_over_floor_int8": "bare session call of one row over the reading of its weights, int8",
    "pss_mb_int8": "most memory (PSS, MB) of all server processes, 8 slots, int8",
}
KEYS = tuple(MEANINGS)
NUM_ROUNDS = 2
NUM_STEPS = 100
NUM_CLIENTS = 16
NUM_REQUEST_CODES = 150
SECONDS_PER_SIDE = 10.0
NUM_STREAMS = 3
MODE = "low_latency"


def measure_steps(size: str, chat: Any) -> dict[str, float]:
    """Ratios of steps, and what a step and a session call come to."""
    prepared = {precision: prepare(precision, size) for precision in ("fp32", "int8")}
    int8 = prepared["int8"].repository
    sides = {
        "fp32": EngineSide(prepared["fp32"].repository, NUM_STEPS),
        "int8": EngineSide(int8, NUM_STEPS),
        "int8_fast": EngineSide(int8, NUM_STEPS, exact_batching=False),
    }
    alone = run_rounds(chat, sides, 1, NUM_ROUNDS, NUM_STEPS)
    batch = run_rounds(chat, {"fp32": sides["fp32"]}, NUM_SEQS, NUM_ROUNDS, NUM_STEPS)
    # Without padding a lone sequence is one row, which is what the floor is about.
    session_s = statistics.median(alone["int8_fast"].session)
    return {
        **{f"steps_ratio_{name}": times.steps_ratio for name, times in alone.items()},
        "steps_ratio_fp32_b8": batch["fp32"].steps_ratio,
        "step_over_session": alone["int8"].step_over_session,
        "session_over_floor_int8": session_over_floor(
            session_s, weight_bytes(load_manifest(int8)), read_bandwidth(num_threads(0))
        ),
    }


def measure_throughput(size: str) -> float:
    """Audio seconds per second over upstream's, the sides in turns, each for a fixed time."""
    prepared = prepare("int8", size)
    found = []
    with (
        our_side(prepared.repository, TEXT, NUM_REQUEST_CODES) as ours,
        upstream_side(prepared.checkpoint, TEXT, NUM_REQUEST_CODES) as upstream,
    ):
        seeds = lasting_seeds(ours.speak, NUM_REQUEST_CODES, NUM_CLIENTS)
        for _ in tqdm(range(NUM_ROUNDS), desc=f"{NUM_CLIENTS} clients", file=sys.stderr):
            one, other = (
                run_cell(side.speak, seeds, NUM_CLIENTS, SECONDS_PER_SIDE, side.drop_waiting)
                for side in (ours, upstream)
            )
            found.append(one.audio_seconds_per_second / other.audio_seconds_per_second)
    return statistics.median(found)


def measure_first_audio(size: str, chat: Any) -> float:
    """Seconds to upstream's first chunk over ours, in turns."""
    prepared = prepare("int8", size)
    found = []
    with (
        our_side(prepared.repository, TEXT, NUM_REQUEST_CODES) as ours,
        ChatTTSClient(ours.url) as client,
    ):
        our_first_audio_s(client, TEXT, MODE, seed=0)  # warms up
        for index in tqdm(range(NUM_STREAMS), desc="first audio", file=sys.stderr):
            upstream_s = lasting_first_audio_s(chat, NUM_ATTEMPTS * index)
            found.append(upstream_s / our_first_audio_s(client, TEXT, MODE, seed=index))
    return statistics.median(found)


def measure(size: str) -> dict[str, Any]:
    chat = quiet_upstream(prepare("int8", size).checkpoint)
    figures = {
        **measure_steps(size, chat),
        "throughput_ratio_16": measure_throughput(size),
        "ttfa_ratio": measure_first_audio(size, chat),
        "pss_mb_int8": peak_memory_mb(prepare("int8", size).repository),
    }
    return {
        "command": "python benchmarks/quick.py" + ("" if size == "full" else f" --size {size}"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        **{key: round(figures[key], 3) for key in KEYS},
    }


def as_table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            "",
            "| figure | value | meaning |",
            "| --- | --- | --- |",
            *(f"| `{key}` | {result[key]:.2f} | {meaning} |" for key, meaning in MEANINGS.items()),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="full")
    args = parser.parse_args()
    result = measure(args.size)
    # Figures of the small stand-in say nothing, so they are kept apart.
    directory = RESULTS if args.size == "full" else ROOT / "build"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "quick.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
