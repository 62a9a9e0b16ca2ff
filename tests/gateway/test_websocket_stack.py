"""`WS /ws/tts` in front of the real tritonserver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gateway_harness import RunningGateway, pcm16_of, running_gateway
from triton_calls import RunningServer, running_server
from websocket_calls import opened

from chattts_client import ChatTTSClient

ENDLESS = {"temperature": 0.01, "repetition_penalty": 1.0, "max_new_tokens": 2048, "seed": 0}


@pytest.fixture(scope="module")
def server(endless_repository: Path) -> Iterator[RunningServer]:
    """One text at a time."""
    with running_server(endless_repository, "--max-num-seqs=1") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: RunningServer) -> Iterator[RunningGateway]:
    with running_gateway(server.grpc_url) as running:
        yield running


def test_the_joined_bytes_are_the_audio_of_the_stream(
    gateway: RunningGateway, server: RunningServer
):
    options = {"seed": 7, "max_new_tokens": 80}
    with ChatTTSClient(server.grpc_url) as client:
        chunks = list(client.stream("你好, hello nine.", speed=5, mode="low_latency", **options))

    with opened(gateway) as socket:
        outcome = socket.speak("你好, hello nine.", **options)

    wanted = pcm16_of(b"".join(chunk.pcm16_bytes() for chunk in chunks))
    np.testing.assert_array_equal(outcome.samples, wanted)
    assert outcome.end["finish_reason"] == chunks[-1].finish_reason == "length"


def test_a_cancelled_utterance_frees_its_slot(gateway: RunningGateway, server: RunningServer):
    with opened(gateway) as socket, ChatTTSClient(server.grpc_url) as client:
        socket.tell("speak", text="你好", **ENDLESS)
        assert socket.next()["type"] == "started"
        socket.tell("cancel")
        assert socket.outcome().end["type"] == "cancelled"

        # With the slot taken this would take as long as the 2,048 steps of the other.
        assert client.synthesize("再见", seed=1, max_new_tokens=5).duration_s > 0
        assert server.metric("chattts_slots") == 1


def test_a_client_that_goes_away_frees_its_slot(gateway: RunningGateway, server: RunningServer):
    with opened(gateway) as socket:
        socket.tell("speak", text="你好", **ENDLESS)
        assert socket.next()["type"] == "started"

    with opened(gateway) as socket:
        assert socket.speak("再见", seed=1, max_new_tokens=5).end["type"] == "finished"
    assert gateway.metric("chattts_gateway_disconnects_total") >= 1
