"""Traces of a request through the ensemble, as tritonserver writes and sends them."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving_harness import infer

from chattts_triton.server.background_server import serve_in_background

EXPORT_TIMEOUT_S = 30.0  # OpenTelemetry sends every 5 s


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a collector of traces does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.exports: queue.Queue[tuple[str, Any]] = queue.Queue()


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.exports.put((self.path, json.loads(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def trace_arguments(*settings: str) -> list[str]:
    always = ("rate=1", "level=TIMESTAMPS")
    return [f"--trace-config={each}" for each in (*settings, *always)]


def test_a_request_is_one_trace_at_a_collector(repository: Path, collector: Collector) -> None:
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    arguments = trace_arguments("mode=opentelemetry", f"opentelemetry,url={url}")
    with serve_in_background(repository, arguments=arguments, timeout_s=60) as server:
        infer(server, "hello")

        path, export = collector.exports.get(timeout=EXPORT_TIMEOUT_S)

    assert path == "/v1/traces"
    spans = [
        span
        for resource in export["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert {"chattts", "preprocess", "gpt", "vocos_decoder"} <= {span["name"] for span in spans}
    assert len({span["traceId"] for span in spans}) == 1


def test_traces_can_be_written_to_a_file(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    arguments = trace_arguments("mode=triton", f"triton,file={path}")
    with serve_in_background(repository, arguments=arguments, timeout_s=60) as server:
        infer(server, "hello")

    models = {
        event["model_name"] for event in json.loads(path.read_text()) if "model_name" in event
    }
    assert models == {"chattts", "preprocess", "gpt", "vocos_decoder"}
