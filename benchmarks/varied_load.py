"""Every kind of request that the metrics tell apart, at a server and at a gateway before it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass

import psutil

from chattts_client import ChatTTSClient, ChatTTSClientError, OptionArguments
from chattts_triton.server.background_server import BackgroundServer
from chattts_triton.server.server_process import end_with_parent
from chattts_triton.server.stub_watch import Stub

TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"
WAIT_S = 120.0
SPEECH = "/v1/audio/speech"
UNENDING = 2048  # steps: as many as a request may ask for
# What is drawn near the likeliest goes on to the limit where the end is unlikely.
UNTIRING: OptionArguments = {"temperature": 0.01, "repetition_penalty": 1.0}


@contextmanager
def running_gateway(triton: str, *arguments: str) -> Iterator[str]:
    """`chattts-triton gateway` before a Triton, as a process.

    Args:
        triton: HOST:PORT of its gRPC endpoint.
        arguments: More of the command's own.

    Yields:
        HOST:PORT of the gateway.
    """
    command = [sys.executable, "-m", "chattts_triton.cli.main", "gateway", "--port=0"]
    with subprocess.Popen(
        [*command, f"--triton={triton}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=end_with_parent(),
    ) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip().removeprefix("ready http=")
        finally:
            process.terminate()


@dataclass(frozen=True)
class VariedLoad:
    """Requests of each kind; any thread may make them.

    Attributes:
        triton: HOST:PORT of the gRPC endpoint.
        gateway: HOST:PORT of a gateway before it.
    """

    triton: str
    gateway: str

    def call(self, seed: int, num_codes: int) -> None:
        """One whole answer of `chattts`."""
        with ChatTTSClient(self.triton, timeout_s=WAIT_S) as client:
            client.synthesize(TEXT, seed=seed, max_new_tokens=num_codes)

    def speak(self, seed: int, num_codes: int) -> int:
        """One stream through the gateway, read to its end; returns the status."""
        with self.stream(seed, num_codes) as response:
            response.read()
            return response.status

    def ask_wrongly(self) -> None:
        """A text without words at the server, an unknown field at the gateway."""
        with ChatTTSClient(self.triton) as client, suppress(ChatTTSClientError):
            client.synthesize("!")
        with self._sent({"input": TEXT, "unknown": 1}) as response:
            response.read()

    def be_late(self) -> None:
        """A call whose time is up before it can be answered."""
        with ChatTTSClient(self.triton, timeout_s=0.05) as client, suppress(ChatTTSClientError):
            client.synthesize(TEXT, seed=1, max_new_tokens=UNENDING, **UNTIRING)

    def overfill(self, num_places: int) -> int:
        """Fill every slot, ask once more, and leave; returns the status of the one too many."""
        with ExitStack() as stack:
            for seed in range(num_places):
                stack.enter_context(self.stream(seed, UNENDING)).read(1)
            return self.speak(0, 1)

    @contextmanager
    def stream(self, seed: int, num_codes: int) -> Iterator[http.client.HTTPResponse]:
        """A stream through the gateway that may be left at any time."""
        body = {"input": TEXT, "response_format": "pcm", "seed": seed, "max_new_tokens": num_codes}
        with self._sent({**body, **UNTIRING}) as response:
            yield response

    @contextmanager
    def _sent(self, body: dict[str, object]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.gateway, timeout=WAIT_S)
        with closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", SPEECH, json.dumps(body).encode(), headers)
            with connection.getresponse() as response:
                yield response


def kill_member(server: BackgroundServer, model: str) -> None:
    """End the process of a Python model at once.

    Raises:
        LookupError: No such process runs.
    """
    for process in psutil.Process(server.process.pid).children(recursive=True):
        if (stub := Stub.of(process.cmdline())) and stub.model == model:
            process.kill()
            return
    raise LookupError(f"{model}: no process")
