"""The stand-in checkpoints and exports that benchmarks share; each is made once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chattts_triton.export.repository import export, is_export_of
from chattts_triton.export.standin import write_standin

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CHECKPOINT = ROOT / "checkpoints" / "standin-full"
SIZES = ("full", "tiny")


@dataclass(frozen=True)
class Prepared:
    """A checkpoint of random weights and its export."""

    checkpoint: Path
    repository: Path


def prepare(precision: str, size: str = "full") -> Prepared:
    """Make what is missing. Speed does not depend on the values of weights, only on sizes.

    Args:
        precision: Of the export.
        size: `full` has the published sizes; `tiny` is for trying a benchmark out.
    """
    checkpoint = CHECKPOINT.with_name(f"standin-{size}")
    if not checkpoint.is_dir():
        write_standin(size, checkpoint)
    suffix = "" if size == "full" else f"-{size}"
    repository = ROOT / "build" / f"bench{suffix}-{precision}"
    if not is_export_of(repository, checkpoint, precision):
        export(checkpoint, repository, precision)
    return Prepared(checkpoint, repository)
