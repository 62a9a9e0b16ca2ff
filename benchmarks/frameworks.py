"""One decode loop in several frameworks, full-size random weights, one sequence, in one run.

PyTorch eager and compiled (upstream's own loop and model), this engine over ONNX Runtime in this
process, and the same engine through Triton, called by gRPC. All sides take turns.
Usage: python benchmarks/frameworks.py [--rounds N] [--steps N] [--size full|tiny]
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tritonclient.grpc as grpcclient
from machine import describe_machine
from prepared import RESULTS, ROOT, SIZES, prepare
from steps import TEXT, EngineSide, quiet_upstream, run_upstream
from tqdm import tqdm

from chattts_triton.config import num_threads
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.server.server_process import end_with_parent
from chattts_triton.tensors import GPT, PREPROCESS

COMPILE_TIMEOUT_S = 600.0
PRECISIONS = ("fp32", "int8")
EAGER, COMPILED = "PyTorch, eager", "PyTorch, torch.compile"
TENSORRT = "TensorRT"

Run = Callable[[], float]


class CompileError(Exception):
    """torch.compile gave no model on this machine; the message is one line."""


def eager(checkpoint: Path, steps: int) -> Run:
    """Upstream's loop as it is shipped."""
    chat = quiet_upstream(checkpoint)

    def run() -> float:
        torch.set_num_threads(num_threads(0))
        elapsed_s = run_upstream(chat, 1, steps)
        use_one_torch_thread()
        return elapsed_s

    return run


@contextmanager
def compiled(size: str, steps: int) -> Iterator[Run]:
    """The same with upstream's `compile` in a process of its own, which may fail or take too long.

    Raises:
        CompileError: It did; the message says why.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, "--compiled", f"--size={size}", f"--steps={steps}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=end_with_parent(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def run() -> float:
        stdin.write("run\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        if "error" in answer:
            raise CompileError(answer["error"])
        return float(answer["elapsed_s"])

    try:
        if not select.select([stdout], [], [], COMPILE_TIMEOUT_S)[0]:
            raise CompileError(f"not ready within {COMPILE_TIMEOUT_S:g} s")
        first = stdout.readline()
        if not first:
            raise CompileError(f"the process ended with status {process.wait()}")
        if "error" in json.loads(first):
            raise CompileError(json.loads(first)["error"])
        yield run
    finally:
        process.kill()
        process.communicate()


def serve_compiled(size: str, steps: int) -> None:
    """The other end of `compiled`: compile by a first loop, then one loop for each line."""
    chat = quiet_upstream(prepare(PRECISIONS[-1], size).checkpoint)
    torch.set_num_threads(num_threads(0))
    try:
        chat.gpt.prepare(compile=True)
        answer: dict[str, Any] = {"elapsed_s": run_upstream(chat, 1, steps)}
    except RuntimeError as error:  # what torch raises where it cannot compile is derived from it
        answer = {"error": f"{type(error).__name__}: {first_line(str(error))}"}
    print(json.dumps(answer), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"elapsed_s": run_upstream(chat, 1, steps)}), flush=True)


def in_process(repository: Path, steps: int) -> tuple[Run, int]:
    """This engine, stepped by hand; and a seed that lasts for all steps."""
    side = EngineSide(repository, steps)
    return lambda: side.run(1)[0], side.seeds[0]


@contextmanager
def through_triton(repository: Path, steps: int, seed: int) -> Iterator[Run]:
    """The model `gpt` alone, with what `preprocess` gives out."""
    with (
        serve_in_background(repository) as server,
        grpcclient.InferenceServerClient(server.grpc) as client,
    ):
        arrays = preprocessed(client, seed)
        arrays["MAX_NEW_CODES"] = np.full_like(arrays["MAX_NEW_CODES"], steps)
        inputs = [infer_input(name, array) for name, array in arrays.items()]

        def run() -> float:
            began_s = time.perf_counter()
            answer = client.infer("gpt", inputs)
            elapsed_s = time.perf_counter() - began_s
            assert int(answer.as_numpy("NUM_CODES").sum()) == steps
            return elapsed_s

        yield run


def preprocessed(client: grpcclient.InferenceServerClient, seed: int) -> dict[str, Any]:
    """What `gpt` takes of the outputs of `preprocess`, by name."""
    inputs = {
        "TEXT": np.array([[TEXT.encode()]], dtype=np.object_),
        "SEED": np.array([[seed]], dtype=np.int64),
    }
    answer = client.infer("preprocess", [infer_input(*item) for item in inputs.items()])
    wanted = {spec.name for spec in GPT.inputs}
    given = [spec.name for spec in PREPROCESS.outputs if spec.name in wanted]
    return {name: answer.as_numpy(name) for name in given}


def infer_input(name: str, array: Any) -> grpcclient.InferInput:
    kinds = {spec.name: spec.dtype for spec in (*PREPROCESS.inputs, *GPT.inputs)}
    datatype = "BYTES" if kinds[name] == "STRING" else kinds[name]
    tensor = grpcclient.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def first_line(message: str) -> str:
    """The first line that says something, without bars, which would end a cell of a table."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0].replace("|", "/")[:200] if lines else "no message"


def measure(rounds: int, steps: int, size: str) -> dict[str, Any]:
    runs: dict[str, Run] = {}
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        runs[EAGER] = eager(prepare("fp32", size).checkpoint, steps)
        try:
            runs[COMPILED] = stack.enter_context(compiled(size, steps))
        except CompileError as error:
            errors[COMPILED] = str(error)
        for precision in PRECISIONS:
            repository = prepare(precision, size).repository
            engine, seed = in_process(repository, steps)
            runs[f"ONNX Runtime, {precision}"] = engine
            runs[f"ONNX Runtime through Triton, {precision}"] = stack.enter_context(
                through_triton(repository, steps, seed)
            )
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in tqdm(range(rounds), desc="rounds", file=sys.stderr):
            for name, run in runs.items():
                times[name].append(run())
    tried_out = "" if size == "full" else f" --size {size}"
    return {
        "command": f"python benchmarks/frameworks.py --rounds {rounds} --steps {steps}{tried_out}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "steps": steps,
        "frameworks": rows(times, errors, steps),
    }


def rows(
    times: dict[str, list[float]], errors: dict[str, str], steps: int
) -> dict[str, dict[str, Any]]:
    """Steps per second and the ratio to eager PyTorch, or why there are none."""
    found: dict[str, dict[str, Any]] = {
        name: {
            "steps_per_second": steps / statistics.median(seconds),
            "ratio": statistics.median(
                theirs / ours for theirs, ours in zip(times[EAGER], seconds, strict=True)
            ),
        }
        for name, seconds in times.items()
    }
    found |= {name: {"error": error} for name, error in errors.items()}
    found[TENSORRT] = {"error": "not measured"}
    return found


def as_table(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        "| framework | steps/s | over eager PyTorch |",
        "| --- | --- | --- |",
    ]
    for name, row in result["frameworks"].items():
        if "error" in row:
            lines.append(f"| {name} | {row['error']} | |")
        else:
            lines.append(f"| {name} | {row['steps_per_second']:.1f} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compiled:
        serve_compiled(args.size, args.steps)
        return
    result = measure(args.rounds, args.steps, args.size)
    # Figures of the small stand-in say nothing, so they are kept apart.
    directory = RESULTS if args.size == "full" else ROOT / "build"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "frameworks.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
