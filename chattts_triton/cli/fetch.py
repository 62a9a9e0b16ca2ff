"""`chattts-triton fetch`: the released weights from the Hugging Face hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chattts_triton.errors import ModelLoadError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "fetch",
        help="download the released ChatTTS weights (CC BY-NC 4.0) and verify them",
        description=(
            "Downloads the released ChatTTS weights (CC BY-NC 4.0), verifies every file, and "
            "prints the directory that holds asset/... . A complete checkpoint is not downloaded "
            "again, and a download that broke off goes on where it stopped. HF_ENDPOINT, HF_HOME "
            "and HF_HUB_OFFLINE are honoured."
        ),
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write to DIR/asset/... (default: the hub's cache)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, and print the directory on standard output."""
    # Here, so that the other commands work without the extra `export`.
    try:
        from chattts_triton.export.fetch import fetch
    except ValueError as error:  # the library reads its environment when it is imported
        raise ModelLoadError(
            f"a variable HF_... of the environment is malformed: {error}"
        ) from error

    sys.stdout.write(f"{fetch(args.out)}\n")
    return 0
