"""A Hugging Face hub on the loopback, which can be made to cut, forge, stall or refuse.

It answers as the real one does: small files straight from `/resolve/`, large ones by a redirect to
a storage on another host, with the hash as their tag and an offer to come by Xet instead.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

import pytest
from huggingface_hub import close_session, constants

REPO_ID = "2Noise/ChatTTS"
COMMIT = "c0ffee" + "0" * 34
BIG = "asset/gpt/model.safetensors"
SMALL = "asset/gpt/config.json"
_RESOLVE = re.compile(rf"/{REPO_ID}/resolve/(?:main|{COMMIT})/(.+)")


def safetensors(num_bytes: int, fill: bytes) -> bytes:
    """A valid file with one tensor of so many bytes."""
    tensor = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}
    header = json.dumps({"weight": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + fill * num_bytes


def checkpoint_files() -> dict[str, bytes]:
    """The layout of ChatTTS, in small."""
    return {
        "asset/Decoder.safetensors": safetensors(300, b"d"),
        "asset/DVAE.safetensors": safetensors(200, b"v"),
        "asset/Embed.safetensors": safetensors(100, b"e"),
        "asset/Vocos.safetensors": safetensors(400, b"o"),
        SMALL: b'{"hidden_size": 768}',
        BIG: safetensors(1000, b"g"),
        "asset/tokenizer/special_tokens_map.json": b"{}",
        "asset/tokenizer/tokenizer_config.json": b"[]",
        "asset/tokenizer/tokenizer.json": b'{"model": {}}',
    }


def sha256_map(files: dict[str, bytes]) -> dict[str, str]:
    """What `fetch` is told to expect."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@dataclass(frozen=True)
class Cut:
    """Close the connection once the file's bytes before `at` are sent."""

    at: int


@dataclass(frozen=True)
class Status:
    """Answer with this HTTP status and no file."""

    code: int


@dataclass(frozen=True)
class Forged:
    """Send these bytes under the name and tag of the right ones."""

    content: bytes


@dataclass(frozen=True)
class Stalled:
    """Send the bytes before `at`, then nothing until the hub is released."""

    at: int


Fault = Cut | Status | Forged | Stalled


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    file: str | None
    range: str | None
    authorization: str | None


class FakeHub(ThreadingHTTPServer):
    """Serves `files`; each GET of a file takes the next of `faults[name]`, and None is no fault."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.sha256 = sha256_map(files)
        self.faults: dict[str, Iterator[Fault | None]] = {}
        self.metadata_status: dict[str, int] = {}
        self.etags: dict[str, str] = {}
        self.commit: str | None = COMMIT
        self.serves_ranges = True
        self.drips = False
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def put(self, name: str, content: bytes) -> None:
        """Serve another file under a name."""
        self.files[name] = content
        self.sha256 = sha256_map(self.files)

    def ranges(self, name: str) -> list[str | None]:
        """The Range header of each GET of a file, in order."""
        return [it.range for it in self.requests if it.method == "GET" and it.file == name]

    def file_requests(self) -> list[Request]:
        """What was asked for files, the client's telemetry left out."""
        return [it for it in self.requests if it.file is not None]


def point_client_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does, for the client in this process, which has read its environment."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@contextmanager
def hub_for_this_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a checkpoint, the cache under `home`, and a session that ends with the block."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with FakeHub(checkpoint_files()) as hub:
        point_client_at(hub.url, monkeypatch)
        close_session()  # proxies are read when a session is made
        yield hub
        close_session()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a test asks `requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        with suppress(ConnectionError):  # the client was killed, or gave up
            self._route()

    def _route(self) -> None:
        resolve = _RESOLVE.fullmatch(self.path)
        name = resolve[1] if resolve else self._stored()
        self.server.requests.append(
            Request(
                self.command,
                self.path,
                name,
                self.headers.get("Range"),
                self.headers.get("Authorization"),
            )
        )
        if resolve and self.server.drips:
            self._drip()
        elif name is None or name not in self.server.files:
            self._reply(404, {"X-Error-Code": "EntryNotFound"} if resolve else {})
        elif resolve and name in self.server.metadata_status:
            self._reply(self.server.metadata_status[name], {})
        elif resolve and name.endswith(".safetensors"):
            self._redirect(name)
        elif self.command == "HEAD":
            self._reply(200, self._metadata(name), len(self.server.files[name]))
        else:
            self._send(name)

    def _stored(self) -> str | None:
        names = {digest: name for name, digest in self.server.sha256.items()}
        return names.get(self.path.removeprefix("/storage/"))

    def _metadata(self, name: str) -> dict[str, str]:
        tag = self.server.etags.get(name, self.server.sha256[name][:40])  # as long as a git hash
        commit = {} if self.server.commit is None else {"X-Repo-Commit": self.server.commit}
        return {"ETag": f'"{tag}"', **commit}

    def _redirect(self, name: str) -> None:
        digest = self.server.sha256[name]
        headers = {
            "Location": f"http://localhost:{self.server.server_port}/storage/{digest}",
            "X-Linked-ETag": f'"{self.server.etags.get(name, digest)}"',
            "X-Linked-Size": str(len(self.server.files[name])),
            "X-Xet-Hash": digest[::-1],
            "X-Xet-Refresh-Route": f"/api/models/{REPO_ID}/xet-read-token/{COMMIT}",
        }
        self._reply(302, {**self._metadata(name), **headers})

    def _send(self, name: str) -> None:
        fault = next(self.server.faults.get(name, iter(())), None)
        if isinstance(fault, Status):
            self._reply(fault.code, {})
            return
        content = fault.content if isinstance(fault, Forged) else self.server.files[name]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.server.serves_ranges else 0
        headers = {"ETag": '"any"'}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._reply(206 if start else 200, headers, len(content) - start)
        end = fault.at if isinstance(fault, Cut | Stalled) else len(content)
        self.wfile.write(content[start:end])
        if isinstance(fault, Stalled):
            self.server.released.wait(60)

    def _drip(self) -> None:
        """Send a header now and then, so that no time-out of the socket ever runs out."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.server.released.wait(0.1):
            self.wfile.write(b"X-Patience: 1\r\n")
        self.close_connection = True

    def _reply(self, status: int, headers: dict[str, str], length: int = 0) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
