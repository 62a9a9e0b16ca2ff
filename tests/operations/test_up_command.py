"""`chattts-triton up`: both servers as processes, stopped together however it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

WAIT_S = 90.0


class RunningUp:
    """The command, once both of its servers answer."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process = process
        self._log = log
        assert process.stdout is not None
        self.lines: list[str] = []
        while not self.lines or not self.lines[-1].startswith("gateway: "):
            self.lines.append(process.stdout.readline())
            assert self.lines[-1], "it has ended"
        self.gateway = self.lines[-1].removeprefix("gateway: ").partition(",")[0]
        self.children = psutil.Process(process.pid).children(recursive=True)

    def child(self, command: str) -> psutil.Process:
        """The process of a command of ours, or of a program of that name."""
        (child,) = (
            child
            for child in psutil.Process(self._process.pid).children(recursive=True)
            if command in child.cmdline()[3:4] or child.name() == command
        )
        return child

    def status_of(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"{self.gateway}{path}", timeout=WAIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Its status and log, once it and all that it started have gone."""
        if number is not None:
            self._process.send_signal(number)
        status = self._process.wait(WAIT_S)
        wait_until(lambda: not any(child.is_running() for child in self.children), "some are left")
        self._log.seek(0)
        return status, self._log.read()


@contextmanager
def up(repository: Path, *arguments: str) -> Iterator[RunningUp]:
    ports = [f"--{name}=0" for name in ("port", "grpc-port", "http-port", "metrics-port")]
    with started(repository, *ports, *arguments) as (process, log):
        yield RunningUp(process, log)


@contextmanager
def started(repository: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    command = [sys.executable, "-m", "chattts_triton.cli.main", "up", f"--repository={repository}"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            yield process, log
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


@pytest.fixture
def repository(tiny_repositories: dict[str, Path]) -> Path:
    return tiny_repositories["int8"]


def test_one_signal_stops_both_once_they_have_spoken(repository: Path):
    with up(repository) as running:
        request = urllib.request.Request(
            f"{running.gateway}/api/tts",
            json.dumps({"text": "你好", "seed": 1}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            audio = answer.read()
        ready = running.status_of("/readyz")
        status, log = running.end(signal.SIGTERM)

    assert running.lines[0].startswith("Triton: gRPC 127.0.0.1:")
    assert (ready, audio[:4]) == (200, b"RIFF")
    assert status == 0
    assert "Traceback" not in log


def test_a_gateway_that_ends_takes_triton_with_it(repository: Path):
    with up(repository) as running:
        running.child("gateway").kill()
        status, log = running.end()

    assert status == 1
    assert "chattts-triton up: gateway ended with status -9" in log


def test_a_tritonserver_that_dies_comes_back_behind_the_same_gateway(repository: Path):
    with up(repository) as running:
        running.child("tritonserver").kill()
        wait_until(lambda: running.status_of("/readyz") == 503, "nobody has noticed")
        wait_until(lambda: running.status_of("/readyz") == 200, "it does not come back")
        running.children = psutil.Process(running.child("serve").pid).children(recursive=True)
        status, _ = running.end(signal.SIGINT)

    assert status == 0


def test_a_taken_port_of_the_gateway_is_named_and_triton_stopped(repository: Path):
    ports = [f"--{name}-port=0" for name in ("grpc", "http", "metrics")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with started(repository, f"--port={number}", *ports) as (process, log):
            status = process.wait(WAIT_S)
            log.seek(0)
            text = log.read()

    assert status == 1
    assert f"chattts-triton gateway: port {number} (--port) is taken by another program" in text
    assert text.splitlines()[-1] == "chattts-triton up: gateway ended with status 1"


def test_an_empty_repository_gets_what_the_demo_serves(tmp_path: Path):
    with up(tmp_path) as running:
        ready = running.status_of("/readyz")
        status, _ = running.end(signal.SIGINT)

    assert running.lines[0].startswith("checkpoint: ")
    assert (ready, status) == (200, 0)
    assert (tmp_path / "gpt").is_dir()
