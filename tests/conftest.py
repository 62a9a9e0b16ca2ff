"""Checkpoints and exports that many tests share: each is made once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from chattts_triton.export.repository import export
from chattts_triton.export.standin import write_standin


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_standin("tiny", directory)
    return directory


@pytest.fixture(scope="session")
def tiny_repositories(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    repositories = {}
    for precision in ("fp32", "int8"):
        repositories[precision] = tmp_path_factory.mktemp(precision) / "model_repository"
        export(tiny_checkpoint, repositories[precision], precision)
    return repositories


@pytest.fixture(scope="session")
def full_checkpoint() -> Path:
    """The stand-in in the published dims; `make demo` makes and keeps the same one."""
    directory = Path(__file__).parents[1] / "checkpoints" / "standin-full"
    if not directory.is_dir():
        write_standin("full", directory)
    return directory
