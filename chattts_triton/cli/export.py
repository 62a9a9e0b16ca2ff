"""`chattts-triton export`: from a checkpoint to a servable model repository."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chattts_triton.errors import InvalidRequestError
from chattts_triton.manifest import DEFAULT_NAME, PRECISIONS, check_name

DEFAULT_REPOSITORY = Path("model_repository")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "export", help="build the ONNX graphs of a checkpoint into a model repository"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with asset/...")
    parser.add_argument("--repository", type=Path, default=DEFAULT_REPOSITORY)
    parser.add_argument("--precision", choices=PRECISIONS, required=True)
    parser.add_argument(
        "--name",
        type=_name,
        default=DEFAULT_NAME,
        help="what the model is called; exports of several names stand side by side",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare every graph with upstream's PyTorch modules and fail over the tolerance",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export, and on request compare."""
    # Imported here: torch and onnx take seconds to load, and only this command needs them.
    from chattts_triton.export.check import check_export
    from chattts_triton.export.repository import export

    check = check_export if args.verify else None
    manifest = export(args.checkpoint, args.repository, args.precision, check=check, name=args.name)
    total = sum(facts.size_bytes for facts in manifest.files.values())
    sys.stdout.write(
        f"exported {args.checkpoint} as {manifest.name}, {manifest.export_id}, "
        f"into {args.repository}: "
        f"{len(manifest.files)} files, {total / 1e6:.0f} MB\n"
    )
    return 0


def _name(text: str) -> str:
    try:
        check_name(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
