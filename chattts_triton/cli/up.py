"""`chattts-triton up`: Triton and the gateway together, until one signal stops both."""

from __future__ import annotations

import argparse
import contextlib
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from chattts_triton.cli.announcement import announce
from chattts_triton.cli.argument_types import port
from chattts_triton.cli.demo import export_demo
from chattts_triton.errors import ModelLoadError, ServerStartError
from chattts_triton.manifest import load_manifest

_READY = "ready "
_TRITON_PORTS = {"grpc": 8001, "http": 8000, "metrics": 8002}


class Event(NamedTuple):
    """What the command waits for: a line of a child, its end, or a signal."""

    child: Child | None = None
    line: str | None = None


Events = queue.SimpleQueue[Event]  # the one queue that a signal's handler may write to


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "up",
        help="serve a repository and a gateway in front of it, on this machine alone",
        description="What `make up` runs: `serve` and `gateway` with their defaults, on 127.0.0.1. "
        "A repository without an export gets the one that `demo` would make. One line tells each "
        "address once it answers. SIGINT and SIGTERM stop both; when one of them ends by itself, "
        "the other is stopped and the status is 1.",
    )
    parser.add_argument("--repository", type=Path, default=Path("model_repository"), metavar="DIR")
    parser.add_argument(
        "--port", type=port, default=8080, metavar="P", help="of the gateway; 0 takes a free port"
    )
    for name, default in _TRITON_PORTS.items():
        parser.add_argument(
            f"--{name}-port", type=port, default=default, metavar="P", help="of Triton, likewise"
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start both, and wait until a signal comes or one of them ends.

    Raises:
        ChatTTSError: There is nothing to serve, or one did not start or has ended by itself.
    """
    try:
        load_manifest(args.repository)
    except ModelLoadError:
        export_demo(args.repository)
    events = Events()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: events.put(Event()))
    triton_ports = [f"--{name}-port={getattr(args, f'{name}_port')}" for name in _TRITON_PORTS]
    with contextlib.ExitStack() as stack:
        serve = Child(events, "serve", f"--repository={args.repository}", *triton_ports)
        triton = stack.enter_context(serve).addresses()
        if triton is None:
            return 0
        grpc, http, metrics = (triton[name] for name in _TRITON_PORTS)
        announce(f"Triton: gRPC {grpc}, HTTP {http}, metrics {metrics}")
        gateway = Child(events, "gateway", f"--triton={grpc}", f"--port={args.port}")
        address = stack.enter_context(gateway).addresses()
        if address is None:
            return 0
        url = f"http://{address['http']}"
        announce(f"gateway: {url}, its API at {url}/docs")
        while (event := events.get()).child is not None:
            event.child.refuse_end(event)  # a line more is `serve` after a restart
    return 0


class Child:
    """Another command of ours, stopped at the end of the context; its log is ours.

    Args:
        events: Is told each line of its standard output, and its end.
        command: Its name.
        arguments: Of it.
    """

    def __init__(self, events: Events, command: str, *arguments: str) -> None:
        # Imported here: only this command and `serve` need the extra `serve`.
        from chattts_triton.server.server_process import end_with_parent

        self._events = events
        self._command = command
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chattts_triton.cli.main", command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Out of the terminal's group: Ctrl-C is for us, who stop it, and once only.
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
        self._reader = threading.Thread(target=self._read, name=command, daemon=True)
        self._reader.start()

    def addresses(self) -> dict[str, str] | None:
        """Where it answers, by protocol, as soon as it does; None if a signal comes before.

        Raises:
            ServerStartError: It has ended, or another child has.
        """
        while (event := self._events.get()).child is not None:
            event.child.refuse_end(event)
            if event.child is self and event.line is not None and event.line.startswith(_READY):
                words = event.line.removeprefix(_READY).split()
                return dict(word.split("=", 1) for word in words)
        return None

    def refuse_end(self, event: Event) -> None:
        """Fail where an event is this child's end.

        Raises:
            ServerStartError: It is.
        """
        if event.line is None:
            raise ServerStartError(f"{self._command} ended with status {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._events.put(Event(self, line))
        self._events.put(Event(self))
