"""How the tests look at a running server: requests, processes, shared memory."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from chattts_triton.server.background_server import BackgroundServer
from chattts_triton.server.shared_memory import SHARED_MEMORY, is_running
from chattts_triton.server.stub_watch import Stub

KEY = "a-key-for-tests"


def wait_for(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        pause.wait(0.02)


def infer(server: BackgroundServer, text: str, timeout_s: float = 20.0) -> str:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensor = grpcclient.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
        return (
            client.infer("chattts", [tensor], client_timeout=timeout_s)
            .as_numpy("FINISH_REASON")[0, 0]
            .decode()
        )


@contextlib.contextmanager
def serve_command(repository: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The bare command with its standard output; killed at the end, however the test ended."""
    command = [sys.executable, "-m", "chattts_triton.cli.main", "serve", "--grpc-port=0"]
    command += ["--http-port=0", "--metrics-port=0", f"--repository={repository}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def hanging_call(
    server: BackgroundServer, repository: Path
) -> Iterator[Future[tuple[BaseException | None, float]]]:
    """A call that hangs in gpt; the future holds the error it ended with, and when."""

    def call() -> tuple[BaseException | None, float]:
        try:
            infer(server, "hang", timeout_s=60)
        except InferenceServerException as error:
            return error, time.monotonic()
        return None, time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        wait_for((repository / "hanging").exists)
        yield future


def http_status(
    address: str, method: str, path: str, key: str | None = None, body: str = ""
) -> int:
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body, {} if key is None else {"admin-key": key})
        return connection.getresponse().status
    finally:
        connection.close()


@dataclass(frozen=True)
class ProcessTree:
    """The processes and shared memory of one `serve`, as they were when this was made."""

    server: psutil.Process
    stubs: dict[str, psutil.Process]
    prefix: str

    @classmethod
    def of(cls, supervisor_pid: int) -> ProcessTree:
        (server,) = psutil.Process(supervisor_pid).children()
        stubs = {}
        for child in server.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a stub that has just ended
                if stub := Stub.of(child.cmdline()):
                    stubs[stub.model] = child
        return cls(server, stubs, f"chattts_{supervisor_pid}_")

    def shared_memory(self) -> list[str]:
        return [path.name for path in SHARED_MEMORY.glob(f"{self.prefix}*")]

    def has_processes(self) -> bool:
        return any(is_running(process) for process in (self.server, *self.stubs.values()))

    def is_gone(self) -> bool:
        return not self.has_processes() and not self.shared_memory()
