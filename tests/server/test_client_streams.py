"""The client's streams and `say --stream` against the real tritonserver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from triton_calls import RunningServer

from chattts_client import (
    AsyncChatTTSClient,
    AudioChunk,
    ChatTTSClient,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    join_chunks,
)
from chattts_triton.cli.main import main

TEXT = "你好，世界。今天天气怎么样？"
# The likeliest code each time, which is never the end code of an `endless_repository`.
ENDLESS: dict[str, Any] = {
    "seed": 0,
    "max_new_tokens": 2048,
    "repetition_penalty": 1.0,
    "temperature": 0.01,
    "mode": "low_latency",
}


@pytest.fixture
def client(server: RunningServer) -> Any:
    with ChatTTSClient(server.grpc_url, timeout_s=60) as connected:
        yield connected


def test_the_joined_chunks_are_the_audio_of_one_call(client: ChatTTSClient):
    audio = client.synthesize(TEXT, seed=3)

    joined = join_chunks(list(client.stream(TEXT, seed=3, mode="quality")))

    assert np.abs(joined.samples - audio.samples).max() <= 1e-5
    assert (joined.seed, joined.finish_reason) == (audio.seed, audio.finish_reason)


def test_the_asyncio_client_streams_the_same(client: ChatTTSClient, server: RunningServer):
    expected = [chunk.samples.tobytes() for chunk in client.stream(TEXT, seed=3, mode="quality")]

    async def read() -> list[bytes]:
        async with AsyncChatTTSClient(server.grpc_url, timeout_s=60) as connected:
            return [
                c.samples.tobytes() async for c in connected.stream(TEXT, seed=3, mode="quality")
            ]

    assert asyncio.run(read()) == expected


def test_errors_of_the_server_have_their_class_and_its_text(client: ChatTTSClient):
    with pytest.raises(InvalidRequestError, match=r"^preprocess: SPEED: got 12, wanted 0 to 9$"):
        list(client.stream(TEXT, speed=12))
    with pytest.raises(InvalidRequestError, match=r"^chattts_stream: MODE: got 'loud', wanted "):
        list(client.stream(TEXT, mode="loud"))


def test_a_deadline_has_its_class(one_slot_server: RunningServer):
    with (
        ChatTTSClient(one_slot_server.grpc_url) as client,
        pytest.raises(DeadlineExceededError),
    ):
        list(client.stream("好", timeout_s=0.3, **ENDLESS))


def test_leaving_the_loop_frees_the_slot(one_slot_server: RunningServer):
    with ChatTTSClient(one_slot_server.grpc_url, timeout_s=60) as client:
        for chunk in client.stream(TEXT, **ENDLESS):
            assert isinstance(chunk, AudioChunk)
            break

        while True:  # the slot is the only one, and nobody may wait
            try:
                client.synthesize("好", seed=1, max_new_tokens=1)
            except OverloadedError:
                continue
            break


def test_say_writes_a_whole_file_as_it_is_generated(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "said.wav"
    arguments = ["--seed", "3", "--mode", "quality", "--url", server.grpc_url]

    status = main(["say", TEXT, "--stream", "-o", str(path), "--json", *arguments])

    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert soundfile.info(path).duration == pytest.approx(report["duration_s"], abs=1e-3)
    assert 0 < report["ttfa_s"] < report["elapsed_s"]
    assert report["num_chunks"] > 1
