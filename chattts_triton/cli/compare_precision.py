"""`chattts-triton compare-precision`: what 8 or 16 bits change against fp32."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chattts_triton.cli.argument_types import positive
from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import PRECISIONS

_REFERENCE = "fp32"
_COMPARED = tuple(precision for precision in PRECISIONS if precision != _REFERENCE)
_DEFAULT_TEXTS = 8
_DEFAULT_STEPS = 100


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "compare-precision",
        help="measure what a precision changes against fp32, on the same codes",
        description="Export a checkpoint in fp32 and in other precisions into a temporary "
        "directory, run the same codes through all of them, and print a table.",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with asset/...")
    parser.add_argument(
        "--precision",
        choices=_COMPARED,
        nargs="+",
        default=list(_COMPARED),
        help="what to compare with fp32; all of them by default",
    )
    parser.add_argument("--texts", type=positive, default=_DEFAULT_TEXTS, metavar="N")
    parser.add_argument(
        "--steps",
        type=positive,
        default=_DEFAULT_STEPS,
        metavar="N",
        help=f"of each text, at most; up to {MAX_NEW_CODES}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, print, and write.

    Raises:
        ModelLoadError: The file cannot be written, which is found out first.
    """
    # Imported here: torch and onnx take seconds to load, and only this command needs them.
    from chattts_triton.export.compare import as_table, compare_precisions

    if args.json is not None:
        _check_writable(args.json)
    precisions = list(dict.fromkeys(args.precision))
    comparisons = compare_precisions(
        args.checkpoint, precisions, num_texts=args.texts, max_steps=args.steps
    )
    sys.stdout.write(f"{as_table(comparisons)}\n")
    if args.json is not None:
        content = {"comparisons": [each.to_json() for each in comparisons]}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        raise ModelLoadError(f"--json {path}: cannot be written: {error}") from error
