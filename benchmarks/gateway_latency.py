"""What the gateway adds to the time to first audio, on full-size random weights in 8 bits.

The same text and seed in turns by gRPC and through the gateway, one caller; from the call to the
first chunk, or to the first byte of the body.
Usage: python benchmarks/gateway_latency.py [--rounds N] [--size full|tiny]
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from machine import describe_machine
from prepared import RESULTS, SIZES, prepare
from tqdm import tqdm

from chattts_client import ChatTTSClient
from chattts_triton.server.background_server import serve_in_background

TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"
PRECISION = "int8"
NUM_CODES = 24
NUM_WARM_UP = 5
WAIT_S = 60.0


@contextmanager
def running_gateway(triton: str) -> Iterator[http.client.HTTPConnection]:
    """A gateway as a process, and one connection to it."""
    command = [sys.executable, "-m", "chattts_triton.cli.main", "gateway", "--port", "0"]
    with subprocess.Popen(
        [*command, "--triton", triton], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip().removeprefix("ready http=")
            with closing(http.client.HTTPConnection(address, timeout=WAIT_S)) as connection:
                yield connection
        finally:
            process.terminate()


def direct_s(client: ChatTTSClient, seed: int) -> float:
    """Seconds to the first chunk by gRPC; the stream is read to its end."""
    began_s = time.perf_counter()
    chunks = client.stream(TEXT, mode="low_latency", seed=seed, max_new_tokens=NUM_CODES)
    next(chunks)
    elapsed_s = time.perf_counter() - began_s
    list(chunks)
    return elapsed_s


def through_gateway_s(connection: http.client.HTTPConnection, seed: int) -> float:
    """Seconds to the first byte of the body; it is read to its end."""
    body = json.dumps(
        {"input": TEXT, "response_format": "pcm", "seed": seed, "max_new_tokens": NUM_CODES}
    ).encode()
    began_s = time.perf_counter()
    connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read(1)
    elapsed_s = time.perf_counter() - began_s
    response.read()
    if response.status != http.client.OK:
        raise SystemExit(f"the gateway answered {response.status}")
    return elapsed_s


def measure(triton: str, rounds: int) -> dict[str, Any]:
    """Both ways in turns, in milliseconds."""
    by_grpc, by_http = [], []
    with ChatTTSClient(triton) as client, running_gateway(triton) as connection:
        for number in tqdm(range(NUM_WARM_UP + rounds), "rounds"):
            direct, through = direct_s(client, number), through_gateway_s(connection, number)
            if number >= NUM_WARM_UP:
                by_grpc.append(direct * 1000)
                by_http.append(through * 1000)
    added = [through - direct for direct, through in zip(by_grpc, by_http, strict=True)]
    return {
        "rounds": rounds,
        "grpc_ms": quantiles(by_grpc),
        "gateway_ms": quantiles(by_http),
        "added_ms": quantiles(added),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """The median and the 95th percentile."""
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {"p50": round(statistics.median(values), 2), "p95": round(cuts[-1], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--size", choices=SIZES, default="full")
    args = parser.parse_args()
    repository = prepare(PRECISION, args.size).repository
    with serve_in_background(repository, timeout_s=WAIT_S) as server:
        measured = measure(server.grpc, args.rounds)
    result = {
        "command": f"python benchmarks/gateway_latency.py --rounds {args.rounds}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "size": args.size,
        **measured,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.size == "full":
        (RESULTS / "gateway_latency.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
