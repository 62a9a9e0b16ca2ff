"""What `max_queue_delay_us` does to streams, full-size random weights in 8 bits.

Each delay has a server of its own, started anew in each round, and the same requests at the same
times: an open loop at a rate at which the engine is mostly idle, and at one at which it is not.
Usage: python benchmarks/queue_delay.py [--rounds N] [--seconds S] [--size full|tiny]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from machine import describe_machine
from prepared import RESULTS, ROOT, SIZES, prepare
from queue_delay_table import as_table
from tqdm import tqdm

from chattts_triton.load.loops import Spoken
from chattts_triton.load.plan import LoadPlan
from chattts_triton.load.run import LoadRun, run_load
from chattts_triton.load.summary import summarize
from chattts_triton.load.texts import TEXTS
from chattts_triton.load.triton_speaker import VoiceOptions, triton_speaker
from chattts_triton.server.background_server import serve_in_background

PRECISION = "int8"
DELAYS_US = (0, 10_000, 100_000)
RATES_PER_S = (0.3, 1.5)
NUM_CODES = 100  # of each text at most, 2.1 s
NUM_WARMUP = 4


async def drive(url: str, rate_per_s: float, seconds: float, seed: int) -> LoadRun:
    """Streams at a rate, for about so long.

    Raises:
        RuntimeError: A request failed, so that the figures would be those of another load.
    """
    num_requests = max(1, round(rate_per_s * seconds))
    plan = LoadPlan(TEXTS, num_requests, rate_per_s=rate_per_s, num_warmup=NUM_WARMUP, seed=seed)
    options = VoiceOptions(max_new_tokens=NUM_CODES)
    async with triton_speaker(
        url, "chattts", options, is_stream=True, mode="low_latency"
    ) as speaker:
        run = await run_load(speaker, plan)
    if failures := summarize(run, is_stream=True).messages:
        raise RuntimeError(f"requests failed: {failures}")
    return run


def measure(rounds: int, seconds: float, size: str) -> dict[str, Any]:
    repository = prepare(PRECISION, size).repository
    runs: dict[tuple[float, int], list[LoadRun]] = {}
    for number, delay_us in tqdm(
        [(number, delay_us) for number in range(rounds) for delay_us in DELAYS_US],
        desc="servers",
        file=sys.stderr,
    ):
        environment = {**os.environ, "CHATTTS_MAX_QUEUE_DELAY_US": str(delay_us)}
        with serve_in_background(repository, environment=environment) as server:
            for rate_per_s in RATES_PER_S:
                run = asyncio.run(drive(server.grpc, rate_per_s, seconds, seed=1_000 * number))
                runs.setdefault((rate_per_s, delay_us), []).append(run)
    return {
        "command": f"python benchmarks/queue_delay.py --rounds {rounds} --seconds {seconds:g}"
        + ("" if size == "full" else f" --size {size}"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": PRECISION,
        "num_codes": NUM_CODES,
        "rows": [
            {"rate_per_s": rate_per_s, "delay_us": delay_us, **figures(same)}
            for (rate_per_s, delay_us), same in sorted(runs.items())
        ],
    }


def figures(runs: list[LoadRun]) -> dict[str, Any]:
    """Those of all rounds together."""
    spoken: list[Spoken] = [one for run in runs for one in run.spoken]
    elapsed_s = sum(run.elapsed_s for run in runs)
    together = LoadRun(runs[0].plan, tuple(spoken), 0.0, elapsed_s)
    return asdict(summarize(together, is_stream=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each rate in each round")
    parser.add_argument("--size", choices=SIZES, default="full")
    args = parser.parse_args()
    result = measure(args.rounds, args.seconds, args.size)
    print(as_table(result))
    if args.size != "full":
        return  # tried out; what is kept is about the published sizes
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "queue_delay.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
