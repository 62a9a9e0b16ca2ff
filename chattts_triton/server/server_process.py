"""One run of tritonserver: a child that ends with us, its log and its stubs."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Container
from pathlib import Path
from typing import BinaryIO

import psutil

from chattts_triton.server.server_log import ServerLog
from chattts_triton.server.shared_memory import clear_prefix
from chattts_triton.server.stub_watch import StubWatch

_PR_SET_PDEATHSIG = 1
_LOG_TIMEOUT_S = 2.0
_LIBC = ctypes.CDLL(None)


class ServerProcess:
    """Starts on construction. The thread that made it must outlive it: the kernel ends it then."""

    def __init__(
        self,
        command: list[str],
        *,
        directory: Path,
        environment: dict[str, str],
        prefix: str,
        sink: BinaryIO,
    ) -> None:
        self._prefix = prefix
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the supervisor, which passes it on
            preexec_fn=end_with_parent(),
        )
        assert self._process.stdout is not None
        self.log = ServerLog(self._process.stdout, sink)  # type: ignore[arg-type]
        self.stubs = StubWatch(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def has_clients(self, ports: Container[int]) -> bool:
        """Whether anybody is connected to one of its ports; also where that cannot be told."""
        try:
            connections = psutil.Process(self._process.pid).net_connections("tcp")
        except psutil.Error:
            return True
        return any(
            connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port in ports
            for connection in connections
        )

    def terminate(self) -> None:
        """Ask it to unload its models and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and its stubs at once, which closes every open call, and remove what it leaves."""
        self._process.kill()
        self._process.wait()
        clear_prefix(self._prefix)
        self.log.join(_LOG_TIMEOUT_S)


def end_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the child gets SIGTERM when the thread that starts it has gone."""
    parent = os.getpid()

    def ask_kernel() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel
