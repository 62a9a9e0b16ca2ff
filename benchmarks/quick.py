"""The short form of all benchmarks: our server against upstream in one run, within 5 minutes.

Full-size random weights. Steps per second of the engine against upstream's own loop, whole requests
of 16 clients against upstream behind a small web application, the time to first audio of streams,
the engine's step against the bare session call, that call against the memory's speed, and the
memory of the server. Writes benchmarks/results/quick.json.
Usage: python benchmarks/quick.py
"""

from __future__ import annotations

import json
import logging
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from steps import (
    CHECKPOINT,
    NUM_SEQS,
    RESULTS,
    ROOT,
    TEXT,
    EngineSide,
    peak_memory_mb,
    run_upstream,
)
from streams import stream, upstream_first_audio_s
from tqdm import tqdm

from chattts_client import ChatTTSClient
from chattts_triton.config import num_threads
from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.export.repository import export, is_export_of
from chattts_triton.export.standin import write_standin
from chattts_triton.export.upstream import load_upstream_chat
from chattts_triton.manifest import load_manifest
from chattts_triton.server.background_server import serve_in_background

STEPS = 60
ROUNDS = 3
NUM_CLIENTS = 16
REQUEST_CODES = 60
# Of each client, one after the other.
OUR_REQUESTS, UPSTREAM_REQUESTS = 5, 1
READ_BYTES = 1 << 30
BYTES_PER_SAMPLE = 4
TIMEOUT_S = 300.0

Figures = dict[str, float]


def main() -> None:
    began_s = time.perf_counter()
    repositories = {precision: exported(precision) for precision in ("fp32", "int8")}
    exported_s = time.perf_counter()
    logging.getLogger("ChatTTS").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    result = {
        "command": "python benchmarks/quick.py",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        **engine_figures(repositories),
        **server_figures(repositories["int8"]),
    }
    result["export_s"] = exported_s - began_s
    result["measuring_s"] = time.perf_counter() - exported_s
    path = RESULTS / "quick.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, value in result.items():
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
    print(f"written to {path.relative_to(ROOT)}")


def exported(precision: str) -> Path:
    """The repository that the other benchmarks use as well."""
    if not CHECKPOINT.is_dir():
        write_standin("full", CHECKPOINT)
    repository = ROOT / "build" / f"bench-{precision}"
    if not is_export_of(repository, CHECKPOINT, precision):
        export(CHECKPOINT, repository, precision)
    return repository


def engine_figures(repositories: dict[str, Path]) -> Figures:
    """Steps per second in process, upstream and ours taking turns."""
    chat = load_upstream_chat(CHECKPOINT)
    sides = {
        "fp32": EngineSide(repositories["fp32"], STEPS),
        "int8": EngineSide(repositories["int8"], STEPS),
        "int8_fast": EngineSide(repositories["int8"], STEPS, exact_batching=False),
    }
    runs = {f"steps_ratio_{name}": (side, 1) for name, side in sides.items()}
    runs["steps_ratio_fp32_b8"] = (sides["fp32"], NUM_SEQS)
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    over_session, session_s = [], []
    for _ in tqdm(range(ROUNDS), desc="rounds", file=sys.stderr):
        upstream_s = {num: upstream_seconds(chat, num) for num in (1, NUM_SEQS)}
        for name, (side, num_seqs) in runs.items():
            use_one_torch_thread()
            elapsed_s, step_times = side.run(num_seqs)
            ratios[name].append(upstream_s[num_seqs] / elapsed_s)
            if side is sides["int8"]:
                session_s.append(statistics.median(side.session_times(1)))
                over_session.append(statistics.median(step_times) / session_s[-1])
    floor_s = graph_bytes(repositories["int8"]) / read_bandwidth()
    return {
        **{name: statistics.median(values) for name, values in ratios.items()},
        "step_over_session": statistics.median(over_session),
        "session_over_floor_int8": statistics.median(session_s) / floor_s,
    }


def upstream_seconds(chat: Any, num_seqs: int) -> float:
    torch.set_num_threads(num_threads(0))
    return run_upstream(chat, num_seqs, STEPS)


def graph_bytes(repository: Path) -> int:
    """What one step has to read: the weights of the GPT's graph."""
    directory = load_manifest(repository).member_directory(repository, "gpt")
    return sum(path.stat().st_size for path in directory.rglob("gpt*") if path.is_file())


def read_bandwidth() -> float:
    """Bytes per second that all cores together read from memory."""
    torch.set_num_threads(num_threads(0))
    numbers = torch.ones(READ_BYTES // 4)
    times = []
    for _ in range(8):
        began_s = time.perf_counter()
        numbers.sum()
        times.append(time.perf_counter() - began_s)
    use_one_torch_thread()
    return READ_BYTES / min(times)


def server_figures(repository: Path) -> Figures:
    """Whole requests, streams and memory of the real server."""
    figures = {"pss_mb_int8": peak_memory_mb(repository)}
    with serving_upstream() as speak_upstream:
        upstream = audio_seconds_per_second(speak_upstream, UPSTREAM_REQUESTS)
    upstream_first_s = first_audio_of_upstream_s()
    with (
        serve_in_background(repository, arguments=[f"--max-num-seqs={NUM_CLIENTS}"]) as server,
        ChatTTSClient(server.grpc) as client,
    ):

        def speak(seed: int) -> float:
            return client.synthesize(TEXT, seed=seed, max_new_tokens=REQUEST_CODES).duration_s

        speak(0)  # the first call of a server is slower
        first_s = [stream(client, "low_latency", seed)["first_audio_s"] for seed in range(ROUNDS)]
        ours = audio_seconds_per_second(speak, OUR_REQUESTS)
    figures["throughput_ratio_16"] = ours / upstream
    figures["ttfa_ratio"] = upstream_first_s / statistics.median(first_s)
    return figures


def audio_seconds_per_second(speak: Callable[[int], float], num_requests: int) -> float:
    """What 16 clients get who each send the next request when the last one is answered.

    Args:
        speak: A seed to the seconds of audio that it gave.
        num_requests: Of each client.
    """

    def client(number: int) -> float:
        return sum(speak(number + NUM_CLIENTS * i) for i in range(num_requests))

    began_s = time.perf_counter()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        audio_s = sum(pool.map(client, range(NUM_CLIENTS)))
    return audio_s / (time.perf_counter() - began_s)


def first_audio_of_upstream_s() -> float:
    """Median seconds to the first chunk of its stream."""
    chat = load_upstream_chat(CHECKPOINT)
    torch.set_num_threads(num_threads(0))
    firsts = [upstream_first_audio_s(chat, seed) for seed in range(ROUNDS + 1)]
    return statistics.median(first for first in firsts if first is not None)


@contextmanager
def serving_upstream() -> Iterator[Callable[[int], float]]:
    """Upstream behind its web application; gives a seed's seconds of audio."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    app = Path(__file__).with_name("upstream_app.py")
    process = subprocess.Popen(
        [sys.executable, str(app), f"--checkpoint={CHECKPOINT}", f"--port={port}"]
    )
    address = f"http://127.0.0.1:{port}"

    def speak(seed: int) -> float:
        asked = {"text": TEXT, "seed": seed, "max_new_tokens": REQUEST_CODES}
        request = urllib.request.Request(
            f"{address}/speak",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return len(answer.read()) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ

    try:
        wait_until_ready(f"{address}/ready", process)
        speak(0)
        yield speak
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    """Return once the application answers.

    Raises:
        RuntimeError: It ended, or did not answer in time.
    """
    until_s = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until_s:
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("upstream's application did not become ready")


if __name__ == "__main__":
    main()
