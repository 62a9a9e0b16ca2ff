"""Streams on the real server, full-size random weights in 8 bits, in one run.

Time to first audio of each mode against upstream's own stream of the same text; the joined stream
against the audio of one call; whether play-out would run dry; how soon a cancelled stream has left
its slot; the slots in use after a storm of calls; the first request after the start against the
tenth; and how soon the server is back when a process of it was killed.
Usage: python benchmarks/streams.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psutil
import torch
from machine import describe_machine
from prepared import RESULTS, ROOT, prepare
from steps import quiet_upstream
from tqdm import tqdm

from chattts_client import ChatTTSClient, ChatTTSClientError, join_chunks
from chattts_triton.config import num_threads
from chattts_triton.manifest import PYTHON_MODELS
from chattts_triton.server.background_server import BackgroundServer, serve_in_background
from chattts_triton.server.stub_watch import Stub

TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"
PRECISION = "int8"
NUM_CODES = 300
UPSTREAM_CHUNK_SAMPLES = 12_000  # its `stream_speed`, of a stream that does not end at once
WAIT_S = 60.0
STORM_KINDS = ("call", "stream", "left", "late")
NUM_STORM_CALLS = 120
NUM_STORM_CLIENTS = 12


def upstream_first_audio_s(chat: Any, seed: int) -> float | None:
    """Seconds to the first chunk of upstream's stream; None if the text ended before it."""
    torch.manual_seed(seed)
    began_s = time.perf_counter()
    chunk = next(chat.infer(TEXT, stream=True, skip_refine_text=True))
    elapsed_s = time.perf_counter() - began_s
    return elapsed_s if chunk.shape[-1] == UPSTREAM_CHUNK_SAMPLES else None


def stream(client: ChatTTSClient, mode: str, seed: int) -> dict[str, Any]:
    """When the chunks of one stream came, and what they are when joined."""
    began_s = time.perf_counter()
    chunks, arrivals_s = [], []
    for chunk in client.stream(TEXT, mode=mode, seed=seed, max_new_tokens=NUM_CODES):
        chunks.append(chunk)
        arrivals_s.append(time.perf_counter() - began_s)
    durations_s = [chunk.duration_s for chunk in chunks]
    # How long what was there before still played when a chunk came.
    slack_s = [arrivals_s[0] + sum(durations_s[:i]) - arrivals_s[i] for i in range(1, len(chunks))]
    return {
        "first_audio_s": arrivals_s[0],
        "total_s": arrivals_s[-1],
        "slack_s": min(slack_s, default=0.0),
        "samples": join_chunks(chunks).samples,
    }


def measure_modes(client: ChatTTSClient, chat: Any, rounds: int) -> dict[str, Any]:
    """Each mode, and upstream, in turns."""
    upstream_s: list[float] = []
    modes: dict[str, list[dict[str, Any]]] = {"low_latency": [], "quality": []}
    for seed in tqdm(range(rounds), desc="modes", file=sys.stderr):
        torch.set_num_threads(num_threads(0))
        for attempt in range(20):
            elapsed_s = upstream_first_audio_s(chat, 100 * seed + attempt)
            if elapsed_s is not None:
                upstream_s.append(elapsed_s)
                break
        one_shot = client.synthesize(TEXT, seed=seed, max_new_tokens=NUM_CODES).samples
        for mode, found in modes.items():
            found.append(stream(client, mode, seed))
            found[-1]["difference"] = float(np.abs(found[-1].pop("samples") - one_shot).max())
    return {
        "upstream_first_audio_s": statistics.median(upstream_s),
        "modes": {
            mode: {
                "first_audio_s": statistics.median(one["first_audio_s"] for one in found),
                "ratio": statistics.median(
                    u / one["first_audio_s"] for u, one in zip(upstream_s, found, strict=True)
                ),
                "total_s": statistics.median(one["total_s"] for one in found),
                "smallest_slack_s": min(one["slack_s"] for one in found),
                "largest_difference": max(one["difference"] for one in found),
            }
            for mode, found in modes.items()
        },
    }


def measure_warm_up(client: ChatTTSClient) -> dict[str, float]:
    """Seconds of the first request of a server and of its tenth."""
    times_s = []
    for _ in range(10):
        began_s = time.perf_counter()
        client.synthesize(TEXT, seed=1, max_new_tokens=50)
        times_s.append(time.perf_counter() - began_s)
    return {"first_s": times_s[0], "tenth_s": times_s[-1], "ratio": times_s[0] / times_s[-1]}


def measure_cancel(rounds: int, repository: Any) -> dict[str, float]:
    """Seconds from a cancel until a call begins that is given the only slot of the server."""
    environment = {**os.environ, "CHATTTS_MAX_WAITING": "0"}
    freed_s = []
    with (
        serve_in_background(
            repository, arguments=["--max-num-seqs=1"], environment=environment
        ) as server,
        ChatTTSClient(server.grpc) as client,
    ):
        step_s = measure_step(client)
        for seed in range(rounds):
            running = client.stream(TEXT, seed=seed, mode="low_latency", temperature=1.0)
            next(running)
            cancelled_s = began_s = time.perf_counter()
            running.close()
            while not is_accepted(client):
                began_s = time.perf_counter()
            freed_s.append(began_s - cancelled_s)
    return {
        "freed_s": statistics.median(freed_s),
        "step_s": step_s,
    }


def is_accepted(client: ChatTTSClient) -> bool:
    """Whether a one-step text is let in; it is then waited for no longer than its prefill."""
    try:
        client.synthesize("好", seed=1, max_new_tokens=1)
    except ChatTTSClientError:
        return False
    return True


def measure_step(client: ChatTTSClient) -> float:
    """Seconds of a step of a lone text."""
    times_s = {}
    for num_codes in (50, 150):
        began_s = time.perf_counter()
        client.synthesize(TEXT, seed=1, max_new_tokens=num_codes)
        times_s[num_codes] = time.perf_counter() - began_s
    return (times_s[150] - times_s[50]) / 100


def measure_recovery(
    server: BackgroundServer, client: ChatTTSClient
) -> dict[str, dict[str, float]]:
    """For each process: seconds from its kill to the error of what ran, and to the next answer."""
    found = {}
    for name in tqdm((*PYTHON_MODELS, "tritonserver"), desc="kills", file=sys.stderr):
        errors_s: list[float] = []
        calls = [
            threading.Thread(target=note_error, args=(call, errors_s))
            for call in (
                lambda: client.synthesize(TEXT, seed=1, temperature=1.0),
                lambda: list(client.stream(TEXT, seed=1, temperature=1.0)),
            )
        ]
        for call in calls:
            call.start()
        time.sleep(0.5)  # both are being generated
        killed_s = time.perf_counter()
        process_of(server, name).kill()
        for call in calls:
            call.join(WAIT_S)
        while not is_accepted(client):
            time.sleep(0.05)
        back_s = time.perf_counter()
        server.wait_until_ready(WAIT_S)
        found[name] = {"error_s": max(errors_s) - killed_s, "back_s": back_s - killed_s}
    return found


def storm(server: BackgroundServer, client: ChatTTSClient) -> dict[str, Any]:
    """Calls and streams that end, are cancelled or run out of time; and the slots that are left."""
    draw = random.Random(1)
    kinds = [draw.choice(STORM_KINDS) for _ in range(NUM_STORM_CALLS)]
    with ThreadPoolExecutor(NUM_STORM_CLIENTS) as pool:
        outcomes = Counter(pool.map(lambda kind: storm_call(client, kind), kinds))
    time.sleep(1)  # until the gauges are published
    slots, used = (gauge(server, f"chattts_slots{suffix}") for suffix in ("", "_used"))
    return {"outcomes": dict(sorted(outcomes.items())), "slots": slots, "slots_used": used}


def storm_call(client: ChatTTSClient, kind: str) -> str:
    try:
        match kind:
            case "call":
                client.synthesize("你好", seed=1, max_new_tokens=20)
            case "stream":
                list(client.stream("你好", seed=1, max_new_tokens=40))
            case "left":
                next(client.stream(TEXT, seed=1, mode="low_latency"))
            case "late":
                client.synthesize(TEXT, seed=1, timeout_s=0.3)
    except ChatTTSClientError as error:
        return error.error_type
    return "left" if kind == "left" else "answered"


def gauge(server: BackgroundServer, name: str) -> int:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        lines = page.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")))


def note_error(call: Callable[[], object], errors_s: list[float]) -> None:
    try:
        call()
    except ChatTTSClientError:
        errors_s.append(time.perf_counter())


def process_of(server: BackgroundServer, name: str) -> psutil.Process:
    for process in psutil.Process(server.process.pid).children(recursive=True):
        stub = Stub.of(process.cmdline())
        if (stub.model if stub else process.name()) == name:
            return process
    raise AssertionError(name)


def measure(rounds: int) -> dict[str, Any]:
    prepared = prepare(PRECISION)
    result: dict[str, Any] = {
        "command": f"python benchmarks/streams.py --rounds {rounds}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": PRECISION,
    }
    began_s = time.perf_counter()
    with serve_in_background(prepared.repository) as server, ChatTTSClient(server.grpc) as client:
        result["start_s"] = time.perf_counter() - began_s
        result["warm_up"] = measure_warm_up(client)
        chat = quiet_upstream(prepared.checkpoint)
        result |= measure_modes(client, chat, rounds)
        del chat
        result["storm"] = storm(server, client)
        result["recovery"] = measure_recovery(server, client)
    result["cancel"] = measure_cancel(rounds, prepared.repository)
    return result


def as_table(result: dict[str, Any]) -> str:
    warm_up, cancel = result["warm_up"], result["cancel"]
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        f"upstream: first audio after {result['upstream_first_audio_s']:.2f} s",
        "",
        "| mode | first audio s | upstream / ours | last chunk s | smallest slack s "
        "| largest difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for mode, row in result["modes"].items():
        lines.append(
            f"| {mode} | {row['first_audio_s']:.3f} | {row['ratio']:.1f} | {row['total_s']:.2f} "
            f"| {row['smallest_slack_s']:.3f} | {row['largest_difference']:.1e} |"
        )
    lines += [
        "",
        f"start of the server: {result['start_s']:.2f} s",
        "",
        "| killed process | error after s | next answer after s |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {row['error_s']:.2f} | {row['back_s']:.2f} |"
            for name, row in result["recovery"].items()
        ),
        "",
        f"The first call that is given the slot of a cancelled stream begins "
        f"{cancel['freed_s'] * 1e3:.0f} ms after the cancel; a step takes "
        f"{cancel['step_s'] * 1e3:.1f} ms.",
        "",
        f"After {sum(result['storm']['outcomes'].values())} calls and streams by "
        f"{NUM_STORM_CLIENTS} clients "
        f"({', '.join(f'{n} {way}' for way, n in result['storm']['outcomes'].items())}) "
        f"{result['storm']['slots_used']} of {result['storm']['slots']} slots are in use.",
        "",
        f"The first request of a server takes {warm_up['ratio']:.2f} times as long as the tenth.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    result = measure(args.rounds)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "streams.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
