"""What a server that was told to stop waits for, and what it does not wait for."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from serving_harness import ProcessTree, hanging_call, http_status, wait_for
from tritonclient.utils import InferenceServerException

from chattts_triton.server.background_server import BackgroundServer, serve_in_background

READY = "/v2/models/chattts/ready"
EXIT_TIMEOUT_S = 60
SOON_S = 20.0  # a busy machine takes some seconds to unload


@pytest.fixture
def patient_server(repository: Path) -> Iterator[BackgroundServer]:
    arguments = [f"--exit-timeout={EXIT_TIMEOUT_S}"]
    with serve_in_background(repository, arguments=arguments, timeout_s=60) as server:
        yield server


def seconds_to_stop(server: BackgroundServer) -> float:
    tree = ProcessTree.of(server.process.pid)
    start_s = time.monotonic()
    server.process.terminate()
    assert server.process.wait(timeout=EXIT_TIMEOUT_S + 10) == 0
    elapsed_s = time.monotonic() - start_s
    assert tree.is_gone()
    return elapsed_s


def test_idle_connections_are_not_waited_for(patient_server: BackgroundServer) -> None:
    host, port = patient_server.http.split(":")
    with (
        contextlib.closing(http.client.HTTPConnection(host, int(port))) as connection,
        grpcclient.InferenceServerClient(patient_server.grpc) as client,
    ):
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        assert client.is_server_live()

        assert seconds_to_stop(patient_server) < SOON_S


def test_a_client_that_has_gone_is_not_waited_for(
    patient_server: BackgroundServer, repository: Path
) -> None:
    host, port = patient_server.http.split(":")
    body = b'{"TEXT": "hang"}'
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            b"POST /v2/models/chattts/generate HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_for((repository / "hanging").exists)

    assert seconds_to_stop(patient_server) < SOON_S


def test_a_stub_that_dies_while_the_server_stops_ends_it(
    patient_server: BackgroundServer, repository: Path
) -> None:
    tree = ProcessTree.of(patient_server.process.pid)
    with hanging_call(patient_server, repository) as call:
        patient_server.process.terminate()
        wait_for(lambda: http_status(patient_server.http, "GET", READY) == 400)

        start_s = time.monotonic()
        tree.stubs["gpt"].kill()
        error, failed_s = call.result(timeout=SOON_S)

        assert patient_server.process.wait(timeout=SOON_S) == 0
    assert isinstance(error, InferenceServerException)
    assert failed_s - start_s < 5
    assert tree.is_gone()


def test_a_request_in_flight_keeps_the_server_and_what_comes_is_refused(
    patient_server: BackgroundServer, repository: Path
) -> None:
    with hanging_call(patient_server, repository) as call:
        patient_server.process.terminate()
        wait_for(lambda: http_status(patient_server.http, "GET", READY) == 400)

        assert http_status(patient_server.http, "POST", "/v2/models/chattts/generate") == 404
        assert http_status(patient_server.http, "GET", "/v2/health/live") == 200
        assert not call.done()
        patient_server.process.terminate()

        assert patient_server.process.wait(timeout=SOON_S) == 0
        error, _ = call.result(timeout=SOON_S)
    assert isinstance(error, InferenceServerException)
