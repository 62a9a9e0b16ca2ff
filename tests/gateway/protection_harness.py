"""Protections to ask, and a real Redis."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from chattts_triton.gateway.admission import Admitted, RequestFacts
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.key_file import editing
from chattts_triton.gateway.protection.keys import ApiKey, hash_of, new_secret
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.quotas import Quota
from chattts_triton.gateway.protection.settings import ProtectionSettings

WAIT_S = 20.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


def new_metrics() -> ProtectionMetrics:
    return ProtectionMetrics(CollectorRegistry())


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"chattts_gateway_{name}", labels) or 0.0


def facts(
    text: str | None = "hello", secret: str | None = None, address: str = "192.0.2.1"
) -> RequestFacts:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    path = "/v1/models" if text is None else "/v1/audio/speech"
    method = "GET" if text is None else "POST"
    return RequestFacts(method, path, headers, address, text, len(text or ""))


async def outcome_of(admission: Any, asked: RequestFacts) -> Admitted | ApiError:
    try:
        return await admission.admit(asked)
    except ApiError as error:
        return error


async def code_of(admission: Any, asked: RequestFacts) -> str:
    """The code of the refusal, or "ok"; what was let in is over at once."""
    outcome = await outcome_of(admission, asked)
    if isinstance(outcome, ApiError):
        return outcome.code
    outcome.release()
    return "ok"


def settings(**given: Any) -> ProtectionSettings:
    quota = Quota(**{name: given.pop(name) for name in ("requests", "characters") if name in given})
    return ProtectionSettings(**{"quota": quota, **given})


def add_key(path: Path, name: str, **quota: Any) -> str:
    """A new key in a file; the key itself."""
    secret = new_secret()
    with editing(path) as keys:
        keys[name] = ApiKey(name, hash_of(secret), Quota(**quota))
    return secret


class RedisServer:
    """A redis-server that keeps nothing; may be stopped and started on the same port."""

    def __init__(self, *options: str) -> None:
        self._options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program, "no redis-server: run scripts/install_redis.sh"
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [program, *arguments, "--appendonly", "no", *self._options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        overdue = threading.Timer(WAIT_S, self._process.kill)
        overdue.start()
        try:
            lines = iter(self._process.stdout.readline, "")
            assert any("Ready to accept connections" in line for line in lines)
        finally:
            overdue.cancel()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=WAIT_S)
            self._process = None


@contextlib.contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    server = RedisServer(*options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
