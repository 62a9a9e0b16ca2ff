from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_harness import KEY
from tiny_repository import write_tiny_repository

from chattts_triton.server.background_server import BackgroundServer, serve_in_background


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_tiny_repository(tmp_path / "repository")


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[BackgroundServer]:
    """A server that a test may break."""
    arguments = [*_with_key(tmp_path), "--exit-timeout=0"]
    with serve_in_background(repository, arguments=arguments, timeout_s=60) as server:
        yield server


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """A server that tests only ask, in a directory and a locale that are hard on text."""
    directory = tmp_path_factory.mktemp("shared")
    repository = write_tiny_repository(directory / "模型 库")
    arguments = [*_with_key(directory), "--max-num-seqs=3", "--threads=2"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["LC_ALL"] = "C"
    with serve_in_background(
        repository, arguments=arguments, environment=environment, timeout_s=60
    ) as server:
        yield server


def _with_key(directory: Path) -> list[str]:
    path = directory / "admin-key"
    path.write_text(f"{KEY}\n")
    return [f"--admin-key-file={path}"]
