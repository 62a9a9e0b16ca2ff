"""A gateway in a thread, and plain HTTP calls of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chattts_triton.gateway.admission import Admission
from chattts_triton.gateway.app import create_app
from chattts_triton.gateway.http_server import HttpServer, listen
from chattts_triton.gateway.metrics import GatewayMetrics
from chattts_triton.gateway.settings import GatewaySettings

WAIT_S = 20.0
READ_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that listens; any thread may call."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @contextlib.contextmanager
    def sent(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, still to be read; the connection ends with the block."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        told = {"Content-Type": "application/json", **(headers or {})}
        with contextlib.closing(connection):
            connection.request(method, path, data, told)
            with connection.getresponse() as response:
                yield response

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        with self.sent(method, path, body, headers) as response:
            return Answer(response.status, response.headers, response.read())

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def speak(self, text: str = "hello", **options: object) -> Answer:
        return self.call("POST", "/v1/audio/speech", {"input": text, **options})

    def metric(self, name: str, **labels: str) -> float:
        """One sample; 0 where there is none yet."""
        told = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        sample = f"{name}{{{told}}} " if told else f"{name} "
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


@contextlib.contextmanager
def running_gateway(
    *triton: str,
    admission: Admission | None = None,
    metrics: GatewayMetrics | None = None,
    **settings: Any,
) -> Iterator[RunningGateway]:
    chosen = {"probe_interval_s": 0.05, "read_timeout_s": READ_TIMEOUT_S, **settings}
    listening = threading.Event()
    bound = listen("127.0.0.1", 0, write_timeout_s=WAIT_S)
    host, port = bound.getsockname()
    checked = GatewaySettings(triton=triton, **chosen)
    server = HttpServer(
        create_app(checked, admission, metrics),
        bound,
        announce=lambda address: listening.set(),
        exit_timeout_s=1,
        read_timeout_s=checked.read_timeout_s,
    )
    thread = threading.Thread(target=server.serve_until_stopped)
    thread.start()
    try:
        assert listening.wait(WAIT_S)
        yield RunningGateway(host, port)
    finally:
        server.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def pcm16_of(body: bytes) -> np.ndarray:
    """(S,) int16 of raw samples."""
    return np.frombuffer(body, "<i2")


def until(condition: Any, timeout_s: float = WAIT_S) -> bool:
    """Whether a condition of another thread comes true in time; it is looked at again and again."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return True
        pause.wait(0.02)  # between two looks at a server that offers no event
    return False
