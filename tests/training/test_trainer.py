"""Training stages: seeded, resumable, and begun anew when what they learn from has changed."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from torch import nn
from torch.multiprocessing import ProcessRaisedException

from training.trainer import Plan, Schedule, train


class Slope(nn.Module):
    """Learns y = 2 x; fails half-way through while the file `broken` is there."""

    def __init__(self, directory) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1, bias=False)
        self._broken = directory / "broken"

    def batch(self, generator, progress):
        if progress >= 0.5 and self._broken.exists():
            raise ValueError("the power went out")
        return torch.randn(8, 1, generator=generator)

    def forward(self, x):
        loss = (self.slope(x) - 2 * x + 0.1 * torch.randn(8, 1)).square().mean()
        return loss, {"slope": self.slope.weight.item()}


def trained(directory, inputs="data", muon_prefix="") -> float:
    """The slope that a stage in this directory learns."""
    directory.mkdir(exist_ok=True)
    schedule = Schedule(60, learning_rate=0.1, warmup_steps=5)
    plan = Plan("slope", schedule, inputs, directory, muon_prefix, save_every_s=0.0)
    return train(plan, partial(Slope, directory)).slope.weight.item()


def logged_steps(directory) -> list[int]:
    lines = (directory / "slope.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_stage_learns_and_logs_what_it_did(tmp_path):
    slope = trained(tmp_path)

    assert slope == pytest.approx(2.0, abs=0.1)
    assert logged_steps(tmp_path) == [50]


@pytest.mark.parametrize("muon_prefix", ["", "slope."])
def test_a_stage_that_was_stopped_ends_where_it_would_have_ended(tmp_path, muon_prefix):
    whole = trained(tmp_path / "whole", muon_prefix=muon_prefix)
    halved = tmp_path / "halved"
    halved.mkdir()
    (halved / "broken").touch()
    with pytest.raises(ProcessRaisedException, match="the power went out"):
        trained(halved, muon_prefix=muon_prefix)
    state = torch.load(halved / "slope.pt", weights_only=True)
    (halved / "broken").unlink()

    resumed = trained(halved, muon_prefix=muon_prefix)

    assert state["step"] == 30
    assert len(state["optimizers"]) == (2 if muon_prefix else 1)
    assert resumed == whole


def test_muon_trains_the_matrices_that_the_plan_names(tmp_path):
    by_adamw, by_muon = (
        trained(tmp_path / "adamw"),
        trained(tmp_path / "muon", muon_prefix="slope."),
    )

    assert by_muon != by_adamw


def test_a_complete_stage_is_not_run_again(tmp_path):
    first = trained(tmp_path)
    (tmp_path / "broken").touch()

    assert trained(tmp_path) == first


def test_a_stage_begins_anew_where_its_inputs_have_changed(tmp_path):
    trained(tmp_path)

    trained(tmp_path, inputs="other data")

    assert logged_steps(tmp_path) == [50, 50]


def test_the_learning_rate_rises_and_then_falls_to_three_percent():
    schedule = Schedule(1000, learning_rate=1.0, warmup_steps=100)

    factors = [schedule.factor(step) for step in range(1000)]

    assert factors[0] == pytest.approx(0.01)
    assert factors.index(max(factors)) == 99
    assert factors[-1] == pytest.approx(0.03, abs=1e-3)
