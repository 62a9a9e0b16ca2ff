"""`chattts-triton serve` as a child of another program: the demo, a benchmark, a test."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from chattts_triton.errors import ServerStartError
from chattts_triton.server.serve_options import Endpoints
from chattts_triton.server.server_process import end_with_parent

_STOP_TIMEOUT_S = 60.0
_REASON = "chattts-triton serve: "


class BackgroundServer:
    """A running `serve`; use it through `serve_in_background`."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes]) -> None:
        self.process = process
        self.endpoints = Endpoints("", "", "")
        self._log = log
        self._ready: queue.Queue[Endpoints | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="serve-output", daemon=True)
        self._reader.start()

    @property
    def grpc(self) -> str:
        """`host:port` of the gRPC service."""
        return self.endpoints.grpc

    @property
    def http(self) -> str:
        """`host:port` of the HTTP service."""
        return self.endpoints.http

    @property
    def metrics(self) -> str:
        """`host:port` of the Prometheus metrics."""
        return self.endpoints.metrics

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the next ready line: the first, or the one after a restart.

        Raises:
            ServerStartError: The server ended, or the time was up; the message says why.
        """
        try:
            endpoints = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise ServerStartError(f"the server was not ready in {timeout_s:g} s") from None
        if endpoints is None:
            raise ServerStartError(self._reason(self.process.wait()))
        self.endpoints = endpoints

    def log(self) -> str:
        """What `serve` and its processes have written on standard error."""
        # Not read through our own descriptor, whose position is that of the writers as well.
        content = Path(f"/proc/self/fd/{self._log.fileno()}").read_bytes()
        return content.decode("utf-8", errors="replace")

    def _reason(self, status: int) -> str:
        """What `serve` itself says when it fails; where it could not, all that was written last."""
        lines = self.log().splitlines()
        if reasons := [line for line in lines if line.startswith(_REASON)]:
            return reasons[-1]
        return "\n".join([f"the server ended with status {status}; last it wrote:", *lines[-20:]])

    def stop(self) -> None:
        """Ask it to end, wait, and kill it if that does not help."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if endpoints := Endpoints.parse(line):
                    self._ready.put(endpoints)
        self._ready.put(None)


@contextlib.contextmanager
def serve_in_background(
    repository: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> Iterator[BackgroundServer]:
    """Serve a repository on free ports in a process of its own while the context lasts.

    Args:
        repository: An exported model repository.
        arguments: More arguments of `chattts-triton serve`; a port given here wins.
        environment: The whole environment of the process; ours where it is left out.
        timeout_s: How long it may take to become ready.

    Raises:
        ServerStartError: It did not become ready; the message is its own.
    """
    command = [sys.executable, "-m", "chattts_triton.cli.main", "serve"]
    command += [f"--repository={repository}", "--grpc-port=0", "--http-port=0", "--metrics-port=0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=None if environment is None else dict(environment),
            text=True,
            encoding="utf-8",
            preexec_fn=end_with_parent(),
        )
        server = BackgroundServer(process, log)
        try:
            server.wait_until_ready(timeout_s)
            yield server
        finally:
            server.stop()
