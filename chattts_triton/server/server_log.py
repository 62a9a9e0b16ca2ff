"""The output of tritonserver: passed on as it comes, its end kept to say why a start failed."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from typing import BinaryIO

from chattts_triton.server.tritonserver import explain_missing_library

_KEPT_LINES = 2000
_TAKEN_PORT = re.compile(r"Socket '[^']*:(\d+)' already in use")
_REASONS = (
    re.compile(r"failed to load '(?P<model>[^']+)' version \d+: [A-Z][a-z ]+: (?P<text>.+?)\"?$"),
    re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<text>.+?)\"?$"),
    re.compile(r"failed to start \w+ service: (?P<text>.+?)\"?$"),
    re.compile(r"^error: creating server: (?P<text>.+)$"),
)


class ServerLog:
    """Copies a pipe to `sink` in its own thread until the pipe ends; safe to ask at any time."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._copy, name="tritonserver-log", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the pipe, which comes when no process holds it any more."""
        self._thread.join(timeout_s)

    def taken_port(self) -> int | None:
        """The port on which the server could not listen, if that was its trouble."""
        for line in list(self._lines):
            if match := _TAKEN_PORT.search(line):
                return int(match[1])
        return None

    def reason(self) -> str:
        """The one line that says best why the server ended."""
        lines = list(self._lines)
        if missing := explain_missing_library("\n".join(lines)):
            return missing
        for pattern in _REASONS:
            for line in lines:
                if match := pattern.search(line):
                    return _one_line(match.groupdict())
        return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")

    def _copy(self) -> None:
        with self._source:
            for line in self._source:
                self._lines.append(line.decode("utf-8", errors="replace").rstrip())
                # A reader that went away must not stop the server, which waits on a full pipe.
                with contextlib.suppress(OSError, ValueError):
                    self._sink.write(line)
                    self._sink.flush()


def _one_line(found: dict[str, str]) -> str:
    # Triton's log writes line ends and quotation marks of a message with a backslash.
    text = found["text"].replace("\\n", "\n").replace('\\"', '"').strip().splitlines()[0]
    return f"model '{found['model']}': {text}" if found.get("model") else text
