"""The examples, each as a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import soundfile
from fake_triton import FakeTriton, fake_pcm16, fake_samples

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"
SAMPLES = [0, 1, -1, 32767, -32768]


def run_example(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    program = "bash" if name.endswith(".sh") else sys.executable
    return subprocess.run(
        [program, str(EXAMPLES / name), *args], capture_output=True, text=True, timeout=60
    )


def test_the_examples_of_grpc_write_their_files(triton: FakeTriton, tmp_path: Path):
    for name, out in (("grpc_plain", "a.wav"), ("synthesize", "b.wav"), ("asyncio_batch", "")):
        result = run_example(f"{name}.py", triton.url, str(tmp_path / out))
        assert (result.returncode, result.stderr) == (0, "")

    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    assert len(list(tmp_path.glob("*.wav"))) == 2 + 6
    assert (tmp_path / "gather_0.wav").read_bytes() == (tmp_path / "batch_0.wav").read_bytes()


def test_the_example_of_a_stream_writes_the_samples_as_they_come(
    triton: FakeTriton, tmp_path: Path
):
    path = tmp_path / "a.pcm"

    to_file = run_example("stream_pcm.py", triton.url, str(path))
    to_output = subprocess.run(
        [sys.executable, EXAMPLES / "stream_pcm.py", triton.url], capture_output=True, timeout=60
    )

    assert (to_file.returncode, to_file.stdout) == (0, "")
    assert to_file.stderr.splitlines()[-1] == "chunk 6: 0.01 s, stop"
    assert path.read_bytes() == fake_pcm16(fake_samples("你好，世界。", 42)).tobytes()
    assert to_output.stdout == path.read_bytes()
    assert triton.last_inputs["MODE"][2] == [b"low_latency"]


def test_the_example_of_a_stream_ends_with_the_servers_text(triton: FakeTriton, tmp_path: Path):
    triton.stream_steps = lambda inputs: [
        (grpc.StatusCode.UNAVAILABLE, "gpt: waiting queue is full")
    ]

    result = run_example("stream_pcm.py", triton.url, str(tmp_path / "a.pcm"))

    assert result.returncode == 1
    assert result.stderr == "OverloadedError: gpt: waiting queue is full\n"


class FakeHttp(BaseHTTPRequestHandler):
    """Answers in the two forms that Triton has over HTTP, or with an error."""

    posts: dict[str, Any]
    refusal: str | None = None

    def do_POST(self) -> None:
        self.posts[self.path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refusal is not None:
            self._answer(400, {"error": self.refusal})
        elif self.path.endswith("/infer"):
            self._answer(200, {"outputs": [{"name": "PCM16", "data": SAMPLES}]})
        else:
            self._answer(200, {"model_name": "chattts", "PCM16": SAMPLES})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def http() -> Iterator[tuple[str, type[FakeHttp]]]:
    class Handler(FakeHttp):
        posts: dict[str, Any] = {}  # noqa: RUF012

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", Handler
        server.shutdown()
        thread.join()


def test_the_example_of_http_writes_a_file_from_either_form(
    http: tuple[str, type[FakeHttp]], tmp_path: Path
):
    url, handler = http

    result = run_example("http_curl.sh", url, str(tmp_path))

    assert (result.returncode, result.stderr) == (0, "")
    for name in ("infer.wav", "generate.wav"):
        pcm16, sample_rate = soundfile.read(tmp_path / name, dtype="int16")
        assert (list(pcm16), sample_rate) == (SAMPLES, 24_000)
    inputs = handler.posts["/v2/models/chattts/infer"]["inputs"]
    short_form = handler.posts["/v2/models/chattts/generate"]
    assert {tensor["name"]: tensor["data"] for tensor in inputs} == {
        name: [value] for name, value in short_form.items()
    }
    assert all(tensor["shape"] == [1, 1] for tensor in inputs)  # B-73


def test_the_example_of_http_shows_the_servers_text(
    http: tuple[str, type[FakeHttp]], tmp_path: Path
):
    url, handler = http
    handler.refusal = "in ensemble 'chattts', preprocess: TEXT: got ''"

    result = run_example("http_curl.sh", url, str(tmp_path))

    assert result.returncode == 1
    assert handler.refusal in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_client_ends_with_the_servers_text(triton: FakeTriton, tmp_path: Path):
    triton.refusal = (grpc.StatusCode.UNAVAILABLE, "in ensemble 'chattts', gpt: queue full")

    result = run_example("synthesize.py", triton.url, str(tmp_path / "a.wav"))

    assert result.returncode == 1
    assert result.stderr == "OverloadedError: in ensemble 'chattts', gpt: queue full\n"
    assert list(tmp_path.iterdir()) == []
