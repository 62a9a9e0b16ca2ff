"""The engine on a CUDA device: whether it may be trusted there, and how fast it is.

The same codes through fp16 on the device and fp32 on the CPU; whether a row keeps its bits in every
batch; steps by batch size; device memory; one call through the server.
Usage: python benchmarks/gpu.py [--checkpoint DIR] [--steps N] [--device cuda|cpu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine

from chattts_client import ChatTTSClient
from chattts_triton.config import MAX_MODEL_LEN, num_threads
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.placement import Placement, slot_bytes
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.export.compare import compare_precisions
from chattts_triton.export.repository import export, is_export_of
from chattts_triton.export.standin import write_standin
from chattts_triton.manifest import Manifest, load_manifest
from chattts_triton.ort import Device, choose_device
from chattts_triton.server.background_server import serve_in_background

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "checkpoints" / "standin-full"
RESULTS = ROOT / "benchmarks" / "results"
PRECISION = "fp16"
BATCHES = (1, 2, 4, 8, 16)
PROMPT = 60
TEXT = "hello, how are you today."


def make_runner(manifest: Manifest, repository: Path, device: Device) -> ModelRunner:
    return ModelRunner(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=max(BATCHES),
        max_model_len=min(MAX_MODEL_LEN, manifest.dims.max_position_embeddings),
        threads=num_threads(0),
        exact_batching=True,
        placement=Placement(device),
    )


def fill(runner: ModelRunner) -> None:
    for slot in range(max(BATCHES)):
        runner.prefill(slot, runner.embed_text(np.arange(100 + slot, 100 + slot + PROMPT)))


def keeps_its_bits(runner: ModelRunner) -> bool:
    """Whether the first row of every batch size has the bits that it has alone."""
    fill(runner)
    dims = runner.dims
    codes = np.random.default_rng(0).integers(0, dims.eos_code, (max(BATCHES), dims.num_vq))
    embeds = runner.embed_codes(codes)
    rows = set()
    for size in BATCHES:
        logits, hiddens = runner.decode(embeds[:size], np.full(size, PROMPT, dtype=np.int32))
        rows.add((logits[0].tobytes(), hiddens[0].tobytes()))
    return len(rows) == 1


def step_times(runner: ModelRunner, size: int, steps: int) -> list[float]:
    """Seconds of each decode call of so many sequences, the first ones left out."""
    fill(runner)
    embeds = np.zeros((size, runner.dims.hidden_size), dtype=np.float32)
    times = []
    for step in range(steps + 3):
        began_s = time.perf_counter()
        runner.decode(embeds, np.full(size, PROMPT + step, dtype=np.int32))
        times.append(time.perf_counter() - began_s)
    return times[3:]


def describe_gpu(device: Device) -> dict[str, Any]:
    """Name, driver and used memory of each device, as the driver tells them."""
    if device is Device.CPU:
        return {}
    query = "--query-gpu=name,driver_version,memory.used"
    out = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return {"gpu": out.strip()}


def one_call(repository: Path) -> dict[str, float]:
    """One text through tritonserver, after one that warms up."""
    with serve_in_background(repository) as server, ChatTTSClient(server.grpc) as client:
        client.synthesize(TEXT, seed=1)
        began_s = time.perf_counter()
        audio = client.synthesize(TEXT, seed=1)
        elapsed_s = time.perf_counter() - began_s
    return {"audio_s": audio.duration_s, "elapsed_s": elapsed_s}


def measure(checkpoint: Path, steps: int, device: Device) -> dict[str, Any]:
    if checkpoint == CHECKPOINT and not checkpoint.is_dir():
        write_standin("full", checkpoint)
    repository = ROOT / "build" / f"bench-{PRECISION}"
    if not is_export_of(repository, checkpoint, PRECISION):
        export(checkpoint, repository, PRECISION)
    manifest = load_manifest(repository)
    runner = make_runner(manifest, repository, device)
    exact = keeps_its_bits(runner)
    times = {size: statistics.median(step_times(runner, size, steps)) for size in BATCHES}
    gpu = describe_gpu(device)  # while the slots are there
    length = runner.kv_cache.max_len
    del runner
    comparisons = compare_precisions(checkpoint, [PRECISION], num_texts=4, max_steps=steps)
    return {
        "command": f"python benchmarks/gpu.py --steps {steps} --device {device}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        **gpu,
        "slot_mb": slot_bytes(manifest.dims, PRECISION, length) / 1e6,
        "a_row_keeps_its_bits": exact,
        "step_ms": {str(size): seconds * 1e3 for size, seconds in times.items()},
        "against_fp32": [each.to_json() for each in comparisons],
        "call": one_call(repository),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", type=Device, choices=list(Device), default=Device.CUDA)
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu.json")
    args = parser.parse_args()
    if args.device is Device.CUDA and choose_device(wants_cuda=True) is not Device.CUDA:
        sys.stderr.write("gpu.py: no CUDA device, or this onnxruntime has no CUDA provider\n")
        sys.exit(2)
    use_one_torch_thread()
    result = measure(args.checkpoint, args.steps, args.device)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2) + "\n"
    args.results.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
