"""`chattts-triton standin`: writes a checkpoint of random weights in the ChatTTS layout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chattts_triton.cli.argument_types import integer
from chattts_triton.sampling_params import MAX_SEED


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "standin",
        help="write a checkpoint of random weights (it makes noise, not speech)",
        description="Write DIR/asset: a checkpoint in the ChatTTS layout with random weights.",
    )
    parser.add_argument("--size", choices=("full", "tiny"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=integer(0, MAX_SEED), default=0, metavar="N")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint that the arguments ask for."""
    # torch takes seconds to import, and the parser of every other command imports this file.
    from chattts_triton.export.standin import write_standin

    write_standin(args.size, args.out, args.seed)
    sys.stdout.write(f"{args.out}: {args.size} stand-in written (it makes noise, not speech)\n")
    return 0
