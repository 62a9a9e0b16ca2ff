"""`python -m training.mandarin`: the second stage, from the voice of the first one."""

from __future__ import annotations

import argparse
from pathlib import Path

from chattts_triton.export import checkpoint as layout
from training.checkpoint import read_gpt, read_module, write_checkpoint
from training.mandarin.stage import train_mandarin, write_dataset_of_both
from training.modules import Dims, Dvae, Vocos
from training.trainer import Schedule

# Gentler than the first stage's, which begins with nothing to lose.
_LEARNING_RATE, _MUON_LEARNING_RATE = 2e-3, 0.012


def main() -> None:
    """Run what is not complete yet."""
    parser = argparse.ArgumentParser(prog="python -m training.mandarin", description=__doc__)
    parser.add_argument("--english", type=Path, default=Path("build/training/voice"), metavar="DIR")
    parser.add_argument("--work", type=Path, default=Path("build/mandarin"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("assets/demo_voice"), metavar="DIR")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    dvae, vocos = Dvae(Dims()), Vocos(Dims())
    read_module(args.english, layout.DVAE, dvae)
    read_module(args.english, layout.VOCOS, vocos)
    dataset = write_dataset_of_both(dvae, args.work)
    schedule = Schedule(args.steps, _LEARNING_RATE, _MUON_LEARNING_RATE, warmup_steps=100)
    gpt = train_mandarin(dataset, read_gpt(args.english), schedule, args.work)
    write_checkpoint(Dims(), gpt, dvae, vocos, args.out)


if __name__ == "__main__":
    main()
