"""The engine against upstream's own loop, on full-size random weights, in one run.

Measures steps per second alone and at 8 sequences (both sides include their prefill), the engine's
decode step against the bare session call, and the memory of all server processes at 8 sequences.
Usage: python benchmarks/steps.py [--rounds N] [--steps N] [--precision fp32|int8] [--fast]
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from memory import PeakMemory
from prepared import RESULTS, ROOT, prepare
from tqdm import tqdm

from chattts_client import ChatTTSClient
from chattts_triton.config import MAX_MODEL_LEN, EngineConfig, num_threads
from chattts_triton.constants import SAMPLES_PER_CODE
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import DEFAULT_PRIORITY, FinishReason, Sequence
from chattts_triton.export.upstream import load_upstream_chat
from chattts_triton.manifest import load_manifest
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.serving.prompt_reader import PromptReader

TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"
NUM_SEQS = 8


@dataclass
class Times:
    """Of each round: seconds of all steps on either side, of a decode step, of a session call."""

    upstream: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    session: list[float] = field(default_factory=list)

    @property
    def steps_ratio(self) -> float:
        """Upstream's seconds over ours.

        Pair by pair, so that a machine whose speed drifts does not tilt the ratio.
        """
        return median([u / o for u, o in zip(self.upstream, self.ours, strict=True)])

    @property
    def step_over_session(self) -> float:
        """What the engine adds to the call of the session, pair by pair too."""
        return median([a / b for a, b in zip(self.step, self.session, strict=True)])


class EngineSide:
    """Our engine, stepped by hand so that every step can be timed."""

    def __init__(self, repository: Path, steps: int, *, exact_batching: bool = True) -> None:
        manifest = load_manifest(repository)
        self.preprocess = PreprocessModel(
            manifest.member_directory(repository, "preprocess"), manifest.special_ids
        )
        self.runner = ModelRunner(
            manifest,
            manifest.member_directory(repository, "gpt"),
            max_num_seqs=NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            threads=num_threads(0),
            exact_batching=exact_batching,
        )
        self.manifest = manifest
        self.samplers = make_samplers(manifest, NUM_SEQS)
        self.steps = steps
        self.seeds = self._lasting_seeds()

    def run(self, num_seqs: int) -> tuple[float, list[float]]:
        """Seconds for all steps, prefill included, and seconds of each full-batch decode step."""
        engine = Engine(self.runner, self.samplers, EngineConfig(max_num_seqs=NUM_SEQS))
        finished: list[Sequence] = []
        engine.add_request([self.sequence(seed, finished) for seed in self.seeds[:num_seqs]])
        began_s, step_times = time.perf_counter(), []
        while len(finished) < num_seqs:
            is_full = engine.num_running == num_seqs
            step_began_s = time.perf_counter()
            engine.step()
            if is_full and engine.num_running == num_seqs:
                step_times.append(time.perf_counter() - step_began_s)
        elapsed_s = time.perf_counter() - began_s
        assert all(s.finish_reason is FinishReason.LENGTH for s in finished), "a sequence ended"
        return elapsed_s, step_times

    def session_times(self, num_seqs: int) -> list[float]:
        """Seconds of the bare session call over the same positions as the steps of `run`."""
        prompt = self.sequence(0, []).num_prompt_tokens
        embeds = np.zeros((num_seqs, self.runner.dims.hidden_size), dtype=np.float32)
        self.runner.decode(embeds, np.full(num_seqs, prompt, dtype=np.int32))
        binding = self.runner._bindings[self.runner._padded(num_seqs)]
        times = []
        for step in range(self.steps - 1):
            self.runner._seqlens[:num_seqs] = prompt + step
            self.runner._total[...] = prompt + step + 1
            began_s = time.perf_counter()
            self.runner._session.run_with_iobinding(binding)
            times.append(time.perf_counter() - began_s)
        return times

    def _lasting_seeds(self) -> list[int]:
        """Seeds whose sequences do not draw the end code within the steps."""
        seeds: list[int] = []
        engine = Engine(self.runner, self.samplers, EngineConfig(max_num_seqs=NUM_SEQS))
        for start in itertools.count(0, NUM_SEQS):
            finished: list[Sequence] = []
            engine.add_request(
                [self.sequence(seed, finished) for seed in range(start, start + NUM_SEQS)]
            )
            while engine.num_running or engine.num_waiting:
                engine.step()
            seeds += [s.params.seed for s in finished if s.finish_reason is FinishReason.LENGTH]
            if len(seeds) >= NUM_SEQS:
                return seeds[:NUM_SEQS]
        raise AssertionError

    def sequence(self, seed: int, finished: list[Sequence]) -> Sequence:
        """A new one of the text; it joins `finished` when it has ended."""
        inputs = {
            "TEXT": np.asarray([[TEXT.encode()]], dtype=np.object_),
            "SEED": np.asarray([[seed]], dtype=np.int64),
        }
        outputs = self.preprocess.run(inputs, {})
        reader = PromptReader(outputs, self.manifest.dims)
        (segment,) = reader.segments(0)
        return Sequence(
            "bench",
            segment.text_ids,
            reader.prompting(0, "bench", None, DEFAULT_PRIORITY).speaker_embedding,
            replace(segment.params, max_new_codes=self.steps),
            finished.append,
        )


def run_upstream(chat: Any, num_seqs: int, steps: int) -> float:
    """Seconds of upstream's own loop over a batch, its prefill included."""
    params = chat.InferCodeParams(
        spk_emb=chat.sample_random_speaker(),
        max_new_token=steps,
        min_new_token=steps,
        show_tqdm=False,
    )
    began_s = time.perf_counter()
    result = next(chat._infer_code([TEXT] * num_seqs, False, chat.device, True, params))
    elapsed_s = time.perf_counter() - began_s
    assert {len(codes) for codes in result.ids} == {steps}
    return elapsed_s


def peak_memory_mb(repository: Path) -> float:
    """PSS summed over serve, tritonserver and its stubs while 8 sequences run."""
    with (
        serve_in_background(repository, arguments=[f"--max-num-seqs={NUM_SEQS}"]) as server,
        ChatTTSClient(server.grpc) as client,
        PeakMemory(server.process.pid) as memory,
    ):
        audios = client.synthesize_batch([TEXT] * NUM_SEQS, seed=list(range(NUM_SEQS)))
    seconds = sum(audio.duration_s for audio in audios)
    logging.getLogger(__name__).info("memory run made %.1f s of audio", seconds)
    return memory.peak_mb


def median(values: list[float]) -> float:
    return statistics.median(values)


def quiet_upstream(checkpoint: Path) -> Any:
    """Upstream's `Chat`, which is to log and warn of nothing while it is timed."""
    logging.getLogger("ChatTTS").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    return load_upstream_chat(checkpoint)


def run_rounds(
    chat: Any, sides: Mapping[str, EngineSide], num_seqs: int, rounds: int, steps: int
) -> dict[str, Times]:
    """Upstream and each of our sides in turns."""
    times = {name: Times() for name in sides}
    for _ in tqdm(range(rounds), desc=f"{num_seqs} sequences", file=sys.stderr):
        torch.set_num_threads(num_threads(0))
        upstream_s = run_upstream(chat, num_seqs, steps)
        use_one_torch_thread()
        for name, side in sides.items():
            elapsed_s, step_times = side.run(num_seqs)
            times[name].upstream.append(upstream_s)
            times[name].ours.append(elapsed_s)
            times[name].step.append(median(step_times))
            times[name].session.append(median(side.session_times(num_seqs)))
    return times


def measure(rounds: int, steps: int, precision: str, *, exact_batching: bool) -> dict[str, Any]:
    prepared = prepare(precision)
    chat = quiet_upstream(prepared.checkpoint)
    sides = {precision: EngineSide(prepared.repository, steps, exact_batching=exact_batching)}
    rows = {
        num_seqs: run_rounds(chat, sides, num_seqs, rounds, steps)[precision]
        for num_seqs in (1, NUM_SEQS)
    }
    del chat, sides
    result: dict[str, Any] = {
        "command": f"python benchmarks/steps.py --rounds {rounds} --steps {steps} "
        f"--precision {precision}{'' if exact_batching else ' --fast'}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": precision,
        "steps": steps,
        "samples_per_step": SAMPLES_PER_CODE,
        "pss_mb": round(peak_memory_mb(prepared.repository)),
        "batches": {
            str(num_seqs): {
                "upstream_steps_per_second": steps / median(row.upstream),
                "engine_steps_per_second": steps / median(row.ours),
                "steps_ratio": row.steps_ratio,
                "engine_step_ms": median(row.step) * 1e3,
                "session_call_ms": median(row.session) * 1e3,
                "step_over_session": row.step_over_session,
            }
            for num_seqs, row in rows.items()
        },
    }
    return result


def as_table(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        "| sequences | upstream steps/s | engine steps/s | ratio | engine step ms "
        "| session call ms | step / session |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for num_seqs, row in result["batches"].items():
        lines.append(
            f"| {num_seqs} | {row['upstream_steps_per_second']:.1f} "
            f"| {row['engine_steps_per_second']:.1f} | {row['steps_ratio']:.2f} "
            f"| {row['engine_step_ms']:.1f} | {row['session_call_ms']:.1f} "
            f"| {row['step_over_session']:.3f} |"
        )
    lines += ["", f"PSS of all server processes at {NUM_SEQS} sequences: {result['pss_mb']} MB"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32")
    parser.add_argument("--fast", action="store_true", help="exact_batching off")
    args = parser.parse_args()
    result = measure(args.rounds, args.steps, args.precision, exact_batching=not args.fast)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"steps_{args.precision}{'_fast' if args.fast else ''}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
