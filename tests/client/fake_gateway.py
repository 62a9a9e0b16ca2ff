"""An HTTP server that answers `POST /v1/audio/speech` as the gateway does, with silence."""

from __future__ import annotations

import io
import json
import threading
import wave
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

NUM_SAMPLES = 1_000
PIECES_BYTES = (401, 1_000, 599)  # a sample may be cut in two


class FakeGateway:
    """Answers as it was told; remembers bodies and headers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.is_ready = True
        self.refusal: tuple[int, bytes] | None = None
        self.breaks = False
        self.file = wav_of(NUM_SAMPLES)
        self.is_silent = False
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"gateway": self})
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    gateway: FakeGateway
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_ready = self.gateway.is_ready and self.path == "/readyz"
        self._answer(200 if is_ready else 503, b"{}")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.gateway.bodies.append(json.loads(self.rfile.read(length)))
        self.gateway.keys.append(self.headers["Authorization"])
        if self.gateway.is_silent:
            self.gateway.over.wait(20)
        elif self.gateway.refusal is not None:
            self._answer(*self.gateway.refusal)
        elif self.gateway.bodies[-1]["response_format"] == "pcm":
            self._stream()
        else:
            self._answer(200, self.gateway.file)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-ChatTTS-Finish-Reason", "length")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("X-ChatTTS-Mode", "low_latency")
        self.end_headers()
        for num_bytes in PIECES_BYTES:
            self.wfile.write(b"%x\r\n%s\r\n" % (num_bytes, bytes(num_bytes)))
        if self.gateway.breaks:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def wav_of(num_samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(24_000)
        wav.writeframes(bytes(2 * num_samples))
    return file.getvalue()
