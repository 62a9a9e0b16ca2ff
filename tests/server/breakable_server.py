"""A real server that a test may stop or break, seen from outside: processes and shared memory."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import tritonclient.grpc as grpcclient
from triton_calls import START_TIMEOUT_S, TIMEOUT_S, RunningServer

from chattts_triton.server.background_server import BackgroundServer, serve_in_background
from chattts_triton.server.shared_memory import SHARED_MEMORY, is_running
from chattts_triton.server.stub_watch import Stub

WAIT_TIMEOUT_S = 30.0
# A channel that has lost its server would else wait for longer and longer before it tries again.
CHANNEL_ARGS = [
    ("grpc.max_receive_message_length", -1),
    *((f"grpc.{bound}_reconnect_backoff_ms", 100) for bound in ("initial", "min", "max")),
]


@dataclass
class BreakableServer(RunningServer):
    """A server of which a test holds the process."""

    background: BackgroundServer
    load_s: float  # how long the start took

    @property
    def prefix(self) -> str:
        """What the name of everything begins with that it has in shared memory."""
        return f"chattts_{self.background.process.pid}_"

    def processes(self) -> list[psutil.Process]:
        """tritonserver and the stubs of its models."""
        return psutil.Process(self.background.process.pid).children(recursive=True)

    def stub(self, model: str) -> psutil.Process:
        """The process of a Python model."""
        for process in self.processes():
            if (stub := Stub.of(process.cmdline())) and stub.model == model:
                return process
        raise AssertionError(f"{model} has no process")

    def shared_memory_bytes(self) -> int:
        files = SHARED_MEMORY.glob(f"{self.prefix}*")
        return sum(path.stat().st_size for path in files if path.is_file())

    def num_waiting_for(self, model: str) -> int:
        """Requests that Triton holds back until the model takes its next one."""
        name = f'nv_inference_pending_request_count{{model="{model}",version="1"}} '
        with urllib.request.urlopen(f"http://{self.metrics_url}/metrics", timeout=TIMEOUT_S) as got:
            lines = got.read().decode().splitlines()
        (value,) = (line.removeprefix(name) for line in lines if line.startswith(name))
        return int(value)

    def num_taken_over(self, gpt: str = "gpt") -> int:
        """Requests that a `gpt` has queued; Triton counts one when `execute` returns."""
        (statistics,) = self.client.get_inference_statistics(gpt).model_stats
        return int(statistics.execution_count)


@contextlib.contextmanager
def breakable_server(repository: Path, *arguments: str) -> Iterator[BreakableServer]:
    start_s = time.monotonic()
    with (
        serve_in_background(
            repository, arguments=arguments, timeout_s=START_TIMEOUT_S
        ) as background,
        grpcclient.InferenceServerClient(background.grpc, channel_args=CHANNEL_ARGS) as client,
    ):
        yield BreakableServer(
            background.grpc,
            background.http,
            background.metrics,
            repository,
            client,
            background,
            time.monotonic() - start_s,
        )


def wait_for(condition: Callable[[], object], timeout_s: float = WAIT_TIMEOUT_S) -> None:
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        pause.wait(0.01)


def is_gone(processes: list[psutil.Process], prefix: str) -> bool:
    """Whether nothing is left of a server."""
    return not any(map(is_running, processes)) and not list(SHARED_MEMORY.glob(f"{prefix}*"))
