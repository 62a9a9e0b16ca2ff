"""`python -m training.mandarin`: the second stage, from the states that the first one left.

Nothing of it ships; benchmarks/voice_mandarin.py tells how far it comes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from training.checkpoint import write_checkpoint
from training.mandarin.stage import train_mandarin, write_dataset_of_both
from training.modules import Dims, Dvae, Vocos
from training.trainer import Schedule

# Gentler than the first stage's, which begins with nothing to lose.
_LEARNING_RATE, _MUON_LEARNING_RATE = 2e-3, 0.012


def main() -> None:
    """Run what is not complete yet."""
    parser = argparse.ArgumentParser(prog="python -m training.mandarin", description=__doc__)
    parser.add_argument("--first", type=Path, default=Path("build/training"), metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("build/mandarin"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("build/mandarin/voice"), metavar="DIR")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    dvae, vocos = Dvae(Dims()), Vocos(Dims())
    for name, module in (("dvae", dvae), ("vocos", vocos)):
        _restore(args.first / f"{name}.pt", f"{name}.", module)
    dataset = write_dataset_of_both(args.first / "corpus", dvae, args.work)
    schedule = Schedule(args.steps, _LEARNING_RATE, _MUON_LEARNING_RATE, warmup_steps=100)
    gpt = train_mandarin(dataset, args.first / "gpt.pt", schedule, args.work)
    write_checkpoint(Dims(), gpt, dvae, vocos, args.out)


def _restore(state: Path, prefix: str, module: nn.Module) -> None:
    stage = torch.load(state, weights_only=True)["stage"]
    module.load_state_dict(
        {name.removeprefix(prefix): t for name, t in stage.items() if name.startswith(prefix)}
    )
    module.eval()


if __name__ == "__main__":
    main()
