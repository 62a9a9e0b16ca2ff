"""NVIDIA's perf_analyzer on `chattts`, unary, at 1 to 8 clients, beside the engine's own metrics.

Usage: python benchmarks/perf_analyzer.py --program FILE [--size tiny|full] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe_machine
from perf_report import Scrape, as_table, engine_row, read_report
from prepared import RESULTS, ROOT, SIZES, prepare
from tqdm import tqdm

from chattts_triton.server.background_server import BackgroundServer, serve_in_background

INPUTS = Path(__file__).with_name("perf_inputs.json")
PRECISION = "int8"
CONCURRENCIES = range(1, 9)
TIMEOUT_S = 900.0
WAIT_S = 10.0


class ProfileError(Exception):
    """perf_analyzer failed, or a request did; the message says which."""


def profile(program: Path, url: str, concurrency: int, num_requests: int) -> dict[str, Any]:
    """One run of perf_analyzer: exactly so many requests, whatever they take.

    Raises:
        ProfileError: It did not end well.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.csv"
        # Windows of time that must agree with each other do not suit requests of unlike lengths.
        command = [
            *(str(program), "-m", "chattts", "-i", "grpc", "-u", url, "--async"),
            *("--input-data", str(INPUTS), "--concurrency-range", str(concurrency)),
            *("--request-count", str(num_requests), "--percentile", "95"),
            *("-f", str(report), "--verbose-csv"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if done.returncode != 0 or not report.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            reason = lines[-1] if lines else "it wrote nothing"
            raise ProfileError(f"perf_analyzer: status {done.returncode}: {reason}")
        return read_report(report.read_text(encoding="utf-8"))


def scrape(server: BackgroundServer, num_requests: int = 0) -> Scrape:
    """The metrics, once they tell of so many requests; they are published a little late.

    Raises:
        ProfileError: They do not within WAIT_S.
    """
    deadline_s = time.monotonic() + WAIT_S
    while (found := read_metrics(server)).num_requests < num_requests:
        if time.monotonic() > deadline_s:
            raise ProfileError(f"chattts: {found.num_requests} requests ended, not {num_requests}")
        time.sleep(0.05)
    return found


def read_metrics(server: BackgroundServer) -> Scrape:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        return Scrape.of(page.read().decode())


def measure(program: Path, size: str, rounds: int) -> dict[str, Any]:
    num_texts = len(json.loads(INPUTS.read_text(encoding="utf-8"))["data"])
    levels: dict[str, Any] = {}
    with serve_in_background(prepare(PRECISION, size).repository) as server:
        profile(program, server.grpc, 1, num_texts)  # warms up
        before = scrape(server, num_texts)
        for concurrency in tqdm(CONCURRENCIES, desc="clients", file=sys.stderr):
            row = profile(program, server.grpc, concurrency, rounds * num_texts)
            after = scrape(server, before.num_requests + rounds * num_texts)
            levels[str(concurrency)] = row | engine_row(before, after)
            if failed := levels[str(concurrency)]["failed"]:
                raise ProfileError(f"chattts: {failed} requests failed at {concurrency} clients")
            before = after
    return {
        "command": f"python benchmarks/perf_analyzer.py --program {shown(program)} "
        f"--size {size} --rounds {rounds}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": PRECISION,
        "size": size,
        "requests": rounds * num_texts,
        "levels": levels,
    }


def shown(program: Path) -> str:
    """The program as it is written in a command from the root of the repository."""
    resolved = program.absolute()
    return str(resolved.relative_to(ROOT) if resolved.is_relative_to(ROOT) else program)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=8, help="how often each text is sent")
    args = parser.parse_args()
    try:
        result = measure(args.program, args.size, args.rounds)
    except (ProfileError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"perf_analyzer: {error}\n")
        return 1
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "perf_analyzer.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
