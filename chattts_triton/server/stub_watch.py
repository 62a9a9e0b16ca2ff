"""Which Python stubs a tritonserver has, and which of them have ended.

Triton goes on calling a model READY when its stub has died, so somebody has to look.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import PurePath

import psutil

from chattts_triton.server.shared_memory import STUB_NAME, is_running

_SCAN_INTERVAL_S = 1.0  # for stubs of models that were loaded meanwhile
_MODEL_FILE_ARGUMENT = 1
_INSTANCE_ARGUMENT = 8


@dataclass(frozen=True)
class Stub:
    """The Python process of one model instance; a reloaded model has the same instances again."""

    model: str
    instance: str

    @classmethod
    def of(cls, command: list[str]) -> Stub | None:
        """Read a process's arguments; None when it is no stub."""
        if len(command) <= _INSTANCE_ARGUMENT or PurePath(command[0]).name != STUB_NAME:
            return None
        model_file = PurePath(command[_MODEL_FILE_ARGUMENT])  # <repository>/<model>/1/model.py
        return cls(model=model_file.parent.parent.name, instance=command[_INSTANCE_ARGUMENT])


class StubWatch:
    """Knows the stubs that one tritonserver has had. For one thread."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._known: set[Stub] = set()
        self._alive: list[tuple[psutil.Process, Stub]] = []
        self._next_scan = 0.0

    def without_stub(self, models: set[str]) -> set[str]:
        """Those of `models` that have no running stub."""
        self._scan()
        return models - {stub.model for _, stub in self._alive}

    def ended(self) -> set[str]:
        """Models of which a stub was seen before that runs no more, under whatever process id."""
        if time.monotonic() >= self._next_scan or not all(is_running(p) for p, _ in self._alive):
            self._scan()
        return {stub.model for stub in self._known - {stub for _, stub in self._alive}}

    def forget(self, model: str) -> None:
        """Leave out a model whose stubs ended as they should."""
        self._known = {stub for stub in self._known if stub.model != model}

    def _scan(self) -> None:
        self._next_scan = time.monotonic() + _SCAN_INTERVAL_S
        self._alive = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._server_pid).children():
                with contextlib.suppress(psutil.Error):
                    stub = Stub.of(process.cmdline())
                    if stub and is_running(process):
                        self._alive.append((process, stub))
        self._known.update(stub for _, stub in self._alive)
