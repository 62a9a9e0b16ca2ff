"""Servers that the tests only ask, each started once a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_calls import RunningServer, running_server

from chattts_triton.export.repository import export


@pytest.fixture(scope="session")
def server(tiny_repositories: dict[str, Path]) -> Iterator[RunningServer]:
    with running_server(tiny_repositories["fp32"], "--max-num-seqs=8") as running:
        yield running


@pytest.fixture(scope="session")
def int8_server(tiny_repositories: dict[str, Path]) -> Iterator[RunningServer]:
    with running_server(tiny_repositories["int8"], "--max-num-seqs=8") as running:
        yield running


@pytest.fixture(scope="session")
def one_slot_server(endless_repository: Path) -> Iterator[RunningServer]:
    """Takes one text at a time and lets none wait."""
    environment = {**os.environ, "CHATTTS_MAX_WAITING": "0"}
    with running_server(endless_repository, "--max-num-seqs=1", environment=environment) as running:
        yield running


@pytest.fixture(scope="session")
def demo_voice_server(
    demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The voice that is shipped, in 8 bits: the only weights here that speak."""
    repository = tmp_path_factory.mktemp("demo_voice") / "model_repository"
    export(demo_checkpoint, repository, "int8")
    with running_server(repository, "--max-num-seqs=8") as running:
        yield running
