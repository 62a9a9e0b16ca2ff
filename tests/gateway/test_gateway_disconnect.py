"""Clients that go away, and clients that take nothing."""

from __future__ import annotations

import http.client
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_streams import chunk_of, silence
from fake_triton import WAIT_S, FakeTriton
from gateway_harness import RunningGateway, running_gateway, until
from test_gateway_errors import Doorkeeper

SPEECH = "/v1/audio/speech"
LARGE_SAMPLES = 500_000  # 1 MB of PCM, more than the buffers between two sockets hold at first


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_a_client_that_goes_away_in_a_stream_cancels_it(triton: FakeTriton, stream_format: str):
    triton.stream_steps = lambda inputs: [silence(0), threading.Event()]
    doorkeeper = Doorkeeper()

    body = {"input": "a", "response_format": "pcm", "stream_format": stream_format}
    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        with gateway.sent("POST", SPEECH, body) as response:
            assert response.read(100)

        assert triton.stream_cancelled.wait(WAIT_S)
        assert until(lambda: gateway.metric("chattts_gateway_disconnects_total") == 1)
        assert until(lambda: doorkeeper.num_inside == 0)


@pytest.mark.parametrize("num_chunks", [0, 1])
@pytest.mark.parametrize("stream_format", [None, "audio"])
def test_a_client_that_goes_away_before_the_answer_cancels_it(
    triton: FakeTriton, gateway: RunningGateway, stream_format: str | None, num_chunks: int
):
    triton.stream_steps = lambda inputs: [
        *(silence(index) for index in range(num_chunks)),
        threading.Event(),
    ]
    leaving = threading.Thread(target=leave_on_arrival, args=(triton, gateway, stream_format))

    leaving.start()

    assert triton.stream_cancelled.wait(WAIT_S)
    leaving.join(WAIT_S)
    assert until(lambda: gateway.metric("chattts_gateway_requests_in_flight") == 1)


def leave_on_arrival(
    triton: FakeTriton, gateway: RunningGateway, stream_format: str | None
) -> None:
    connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=WAIT_S)
    body = json.dumps({"input": "a", "stream_format": stream_format})
    connection.request("POST", SPEECH, body, {"Content-Type": "application/json"})
    assert triton.arrived.wait(WAIT_S)
    connection.close()


def test_a_client_that_takes_nothing_is_dropped(triton: FakeTriton):
    chunk = np.zeros(LARGE_SAMPLES)
    triton.stream_steps = lambda inputs: (chunk_of(chunk, index) for index in range(1_000))

    body = {"input": "a", "response_format": "pcm"}
    with (
        running_gateway(triton.url, write_timeout_s=0.3) as gateway,
        gateway.sent("POST", SPEECH, body),
    ):
        assert triton.stream_cancelled.wait(WAIT_S)
        assert until(lambda: gateway.metric("chattts_gateway_broken_streams_total") == 1)


def test_200_clients_that_come_and_go_leave_nothing_behind(triton: FakeTriton):
    draw = random.Random(7)
    doorkeeper = Doorkeeper()
    plans = [
        (draw.choice([None, "audio", "sse"]), draw.choice(["mp3", "opus", "flac", "wav", "pcm"]))
        for _ in range(200)
    ]

    def visit(number: int) -> int:
        stream_format, response_format = plans[number]
        body = {"input": "hello there", "seed": number, "response_format": response_format}
        if stream_format:
            body["stream_format"] = stream_format
        with gateway.sent("POST", SPEECH, body) as response:
            if number % 3:
                response.read()
            return response.status

    with running_gateway(triton.url, admission=doorkeeper) as gateway:
        with ThreadPoolExecutor(16) as threads:
            statuses = list(threads.map(visit, range(len(plans))))
        assert until(lambda: gateway.metric("chattts_gateway_requests_in_flight") == 1)

    assert statuses == [200] * len(plans)
    assert len(doorkeeper.facts) == len(plans)
    assert doorkeeper.num_inside == 0
