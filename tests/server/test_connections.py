"""Clients that do not read what they have asked for, on the real server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from stream_calls import stream
from triton_calls import RunningServer, running_server
from tritonclient.grpc import service_pb2_grpc

from chattts_client._options import SynthesisOptions
from chattts_client._wire import stream_request

AGE_S = 2
GRACE_S = 2
WAIT_S = 30.0
LONG_TEXT = "今天天气很好，我们去公园散步。" * 40


@pytest.fixture(scope="module")
def strict_server(tiny_repositories: dict[str, Path]) -> Iterator[RunningServer]:
    arguments = (f"--max-connection-age={AGE_S}", f"--connection-grace={GRACE_S}")
    with running_server(tiny_repositories["fp32"], *arguments) as running:
        yield running


def test_a_client_that_never_reads_is_dropped_and_one_that_reads_is_served(
    strict_server: RunningServer,
):
    options = SynthesisOptions(seed=1)
    request = stream_request("chattts", LONG_TEXT, options, "low_latency", WAIT_S)
    with grpc.insecure_channel(strict_server.grpc_url) as channel:
        # No message is asked for, so gRPC takes only what its window has room for.
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))

        wait_until(lambda: num_cancelled(strict_server) == 1)

        call.cancel()
    chunks = stream(strict_server, "你好", SEED=1, MAX_NEW_TOKENS=20)
    assert chunks[-1].is_last


def num_cancelled(server: RunningServer) -> float:
    name = 'chattts_requests_total{ensemble="chattts",model="chattts_stream",outcome="cancelled"}'
    return server.sample(name)


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "nobody was dropped"
