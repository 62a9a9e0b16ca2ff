"""The two sides of a comparison: our server by gRPC, and upstream behind `upstream_app.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from closed_loop import NotSpokenError, Speak
from upstream_app import DROPPED, READY

from chattts_client import ChatTTSClient
from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.errors import ServerStartError
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.server.server_process import end_with_parent

TIMEOUT_S = 600.0
VOICE = "seed:42"
APP = Path(__file__).with_name("upstream_app.py")


@dataclass(frozen=True)
class Side:
    """One server that speaks.

    Attributes:
        speak: Seconds of audio that came for a seed.
        drop_waiting: Fails the requests that wait, see `closed_loop.run_cell`.
        pid: Of the process above all others of this side.
        cold_start_s: From the start of that process to the first answer.
        url: `host:port`.
    """

    speak: Speak
    drop_waiting: Callable[[], object]
    pid: int
    cold_start_s: float
    url: str


@contextmanager
def our_side(
    repository: Path, text: str, num_codes: int, *, arguments: tuple[str, ...] = ()
) -> Iterator[Side]:
    """Our server over an export, each request `num_codes` steps at the most."""
    began_s = time.perf_counter()
    with (
        serve_in_background(repository, arguments=arguments) as server,
        ChatTTSClient(server.grpc, timeout_s=TIMEOUT_S) as client,
    ):

        def speak(seed: int) -> float:
            audio = client.synthesize(text, seed=seed, voice=VOICE, max_new_tokens=num_codes)
            return audio.duration_s

        speak(0)
        cold_start_s = time.perf_counter() - began_s
        # All callers have a slot at once, so nobody waits.
        yield Side(speak, lambda: None, server.process.pid, cold_start_s, server.grpc)


@contextmanager
def upstream_side(checkpoint: Path, text: str, num_codes: int) -> Iterator[Side]:
    """Upstream over a checkpoint, each request exactly `num_codes` steps.

    Raises:
        ServerStartError: The app ended before it was ready; its own message is on standard error.
    """
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(APP), f"--checkpoint={checkpoint}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent(),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith(READY):
            raise ServerStartError(f"upstream_app: ended with status {process.wait()}")
        url = line.removeprefix(READY)

        def speak(seed: int) -> float:
            return len(order(url, text, seed, num_codes)) / SAMPLE_RATE_HZ

        speak(0)
        cold_start_s = time.perf_counter() - began_s
        yield Side(speak, lambda: _post(url, "/drop-waiting", b""), process.pid, cold_start_s, url)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def order(
    url: str, text: str, seed: int, num_codes: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The samples of one request to upstream's app.

    Raises:
        NotSpokenError: It was dropped while it waited.
    """
    body = json.dumps({"text": text, "seed": seed, "num_codes": num_codes}).encode()
    try:
        return np.frombuffer(_post(url, "/speech", body), dtype=np.float32)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == DROPPED:
                raise NotSpokenError from None
            raise


def _post(url: str, path: str, body: bytes) -> bytes:
    request = urllib.request.Request(
        f"http://{url}{path}", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        answer: bytes = response.read()
        return answer
