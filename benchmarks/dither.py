"""What the dither of `to_pcm16` costs, beside the decoding of the same hidden states.

Usage: python benchmarks/dither.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine
from tqdm import tqdm

from chattts_triton.audio import to_pcm16
from chattts_triton.config import num_threads
from chattts_triton.export.repository import export, is_export_of
from chattts_triton.export.standin import write_standin
from chattts_triton.manifest import load_manifest
from chattts_triton.vocoder.decoder import WaveformDecoder

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "checkpoints" / "standin-full"
RESULT = ROOT / "benchmarks" / "results" / "dither.json"
NUM_CODES = (50, 250, 1000)
MAX_SHARE = 0.01


def seconds(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def median(values: list[float]) -> float:
    return statistics.median(values)


def measure(rounds: int) -> dict[str, Any]:
    if not CHECKPOINT.is_dir():
        write_standin("full", CHECKPOINT)
    repository = ROOT / "build" / "bench-int8"
    if not is_export_of(repository, CHECKPOINT, "int8"):
        export(CHECKPOINT, repository, "int8")
    manifest = load_manifest(repository)
    decoder = WaveformDecoder(
        manifest.member_directory(repository, "vocos_decoder"), threads=num_threads(0)
    )
    generator = np.random.default_rng(0)
    lengths: dict[str, Any] = {}
    for num_codes in tqdm(NUM_CODES, desc="lengths", file=sys.stderr):
        shape = num_codes, manifest.dims.hidden_size
        lengths[str(num_codes)] = measure_length(
            decoder, generator.standard_normal(shape, dtype=np.float32), rounds
        )
    return {
        "command": f"python benchmarks/dither.py --rounds {rounds}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "lengths": lengths,
    }


def measure_length(decoder: WaveformDecoder, hiddens: Any, rounds: int) -> dict[str, Any]:
    """Medians, and the median of the shares: round by round, so that a machine may drift."""
    audio = decoder.decode(hiddens)  # also warms up
    to_pcm16(audio, 42)
    decoding, dithered, plain = [], [], []
    for _ in range(rounds):
        decoding.append(seconds(lambda: decoder.decode(hiddens)))
        dithered.append(seconds(lambda: to_pcm16(audio, 42)))
        plain.append(seconds(lambda: to_pcm16(audio)))
    return {
        "samples": len(audio),
        "decode_ms": median(decoding) * 1e3,
        "pcm16_ms": median(dithered) * 1e3,
        "pcm16_without_dither_ms": median(plain) * 1e3,
        "pcm16_share": median([p / d for p, d in zip(dithered, decoding, strict=True)]),
        "dither_share": median(
            [(p - q) / d for p, q, d in zip(dithered, plain, decoding, strict=True)]
        ),
    }


def as_table(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        "| steps | decode ms | to 16 bits ms | without dither ms | to 16 bits / decode "
        "| dither / decode |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for num_codes, row in result["lengths"].items():
        lines.append(
            f"| {num_codes} | {row['decode_ms']:.1f} | {row['pcm16_ms']:.2f} "
            f"| {row['pcm16_without_dither_ms']:.2f} | {row['pcm16_share']:.2%} "
            f"| {row['dither_share']:.2%} |"
        )
    return "\n".join(lines)


def failures(result: dict[str, Any]) -> list[str]:
    return [
        f"{num_codes} steps: the dither takes over {MAX_SHARE:.0%} of the decoding"
        for num_codes, row in result["lengths"].items()
        if row["dither_share"] > MAX_SHARE
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    result = measure(args.rounds)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{as_table(result)}\n\nwritten to {RESULT.relative_to(ROOT)}\n")
    found = failures(result)
    for failure in found:
        sys.stderr.write(f"{failure}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
