"""Runs one stage of training: seeded, resumable, on every core or on a GPU where there is one.

A stage is an `nn.Module` whose `forward` takes a batch and returns the loss and figures to log. Its
`batch(generator, progress)` gives the tensors of one step and process, all drawn from `generator`;
progress is 0 to 1. So batches depend on seed, step and process only, and a stage that was stopped
goes on where it was.
On CPUs one process with one thread per core, data parallel, is far faster than one with threads.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

_LOG_EVERY_STEPS = 50


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage learns: linear warm-up, then a cosine down to 3 %.

    The rate of Muon is for the matrices that the plan names, the other for all else.
    """

    steps: int
    learning_rate: float
    muon_learning_rate: float = 0.02
    warmup_steps: int = 200
    weight_decay: float = 0.01
    seed: int = 0

    def factor(self, step: int) -> float:
        """Of the learning rate, at a step."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        return warmup * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / self.steps)))


Build = Callable[[], nn.Module]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a stage is trained by; a state that was saved under another plan is not used.

    Attributes:
        name: Of the stage; its state is `<name>.pt` and its log `<name>.jsonl`.
        schedule: How long and how fast.
        inputs: What it learns from, such as a fingerprint of the data.
        directory: Where state and log are kept.
        muon_prefix: Of the parameters whose matrices Muon trains; empty for none. It learns a
            transformer in far fewer steps than AdamW, which trains everything else.
        save_every_s: What a killed run loses at most.
    """

    name: str
    schedule: Schedule
    inputs: str
    directory: Path
    muon_prefix: str = ""
    save_every_s: float = 120.0

    @property
    def state(self) -> Path:
        """Parameters and optimisers at the last step that was saved."""
        return self.directory / f"{self.name}.pt"

    @property
    def log(self) -> Path:
        """Means of every 50 steps."""
        return self.directory / f"{self.name}.jsonl"

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved state to be gone on with."""
        return {"schedule": dataclasses.asdict(self.schedule), "inputs": self.inputs}


def train(plan: Plan, build: Build) -> nn.Module:
    """Train to the last step of the schedule, from where a former run stopped.

    Args:
        plan: Name, schedule and place of the stage.
        build: Makes the stage; called in every process, so it must be picklable.

    Returns:
        The stage with its trained parameters, on the CPU.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    if _next_step(plan) < plan.schedule.steps:
        num_processes = 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))
        with tempfile.TemporaryDirectory() as meeting_place:
            mp.start_processes(
                _run,
                args=(num_processes, plan, build, meeting_place),
                nprocs=num_processes,
                start_method="spawn",
            )
    stage = build()
    stage.load_state_dict(torch.load(plan.state, weights_only=True)["stage"])
    return stage.eval()


def _next_step(plan: Plan) -> int:
    if not plan.state.exists():
        return 0
    saved = torch.load(plan.state, weights_only=True)
    return int(saved["step"]) if saved["identity"] == plan.identity() else 0


def _run(rank: int, num_processes: int, plan: Plan, build: Build, meeting_place: str) -> None:
    # What tells a process that its parent has gone, and what a job in the background ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1 if num_processes > 1 else torch.get_num_threads())
    torch.distributed.init_process_group(
        "gloo", f"file://{meeting_place}/store", rank=rank, world_size=num_processes
    )
    schedule = plan.schedule
    torch.manual_seed(schedule.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stage = build().to(device)
    optimizers = _optimizers(plan, stage)
    first = _restore(plan, stage, optimizers)
    parallel = DistributedDataParallel(stage)
    log = _Log(plan, first, is_shown=rank == 0)
    for step in range(first, schedule.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor(step)
        # Drawn anew at every step, so that nothing depends on where a former run stopped.
        seed = (schedule.seed * 1_000_003 + step) * num_processes + rank
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        loss, figures = parallel(stage.batch(generator, step / schedule.steps))
        parallel.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        log.add(step, {"loss": loss.item(), **figures})
        if rank == 0 and (log.is_save_due() or step + 1 == schedule.steps):
            _save(plan, step + 1, stage, optimizers)
    # Together: a process whose peers are gone may be torn down while a thread of gloo still runs.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _optimizers(plan: Plan, stage: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW, and Muon before it where the plan asks for it; gains and biases do not decay."""
    schedule = plan.schedule
    muon, matrices, others = [], [], []
    for name, parameter in stage.named_parameters():
        if plan.muon_prefix and name.startswith(plan.muon_prefix) and parameter.dim() == 2:
            muon.append(parameter)
        else:
            (matrices if parameter.dim() >= 2 else others).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=(0.9, 0.98))
    ]
    if muon:
        rate = schedule.muon_learning_rate
        optimizers.insert(0, torch.optim.Muon(muon, lr=rate, weight_decay=schedule.weight_decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def _restore(plan: Plan, stage: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    first = _next_step(plan)
    if first:
        saved = torch.load(plan.state, weights_only=True)
        stage.load_state_dict(saved["stage"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    return first


def _save(plan: Plan, step: int, stage: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    content = {
        "step": step,
        "identity": plan.identity(),
        "stage": stage.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    fresh = plan.state.with_suffix(".new")
    torch.save(content, fresh)
    fresh.replace(plan.state)  # a kill leaves the former state or this one


class _Log:
    """A progress bar, and the means of every 50 steps as lines of JSON."""

    def __init__(self, plan: Plan, first: int, is_shown: bool) -> None:
        self._plan = plan
        self._is_shown = is_shown
        self._bar = tqdm(
            total=plan.schedule.steps,
            initial=first,
            desc=plan.name,
            unit="step",
            disable=not is_shown,
        )
        self._sums: dict[str, float] = {}
        self._count = 0
        self._began_s = self._saved_s = time.monotonic()

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._count += 1
        self._bar.update()
        if self._is_shown and self._count == _LOG_EVERY_STEPS:
            means = {key: round(value / self._count, 4) for key, value in self._sums.items()}
            self._bar.set_postfix(means)
            elapsed_s = round(time.monotonic() - self._began_s, 1)
            with self._plan.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step + 1, "elapsed_s": elapsed_s, **means}) + "\n")
            self._sums, self._count = {}, 0

    def is_save_due(self) -> bool:
        if time.monotonic() - self._saved_s < self._plan.save_every_s:
            return False
        self._saved_s = time.monotonic()
        return True
