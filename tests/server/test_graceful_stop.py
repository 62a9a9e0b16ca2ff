"""Told to stop, the server takes nothing new and answers what it has taken."""

from __future__ import annotations

import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from breakable_server import BreakableServer, breakable_server, is_gone, wait_for
from stream_calls import StreamCall, samples_of, stream
from triton_calls import TIMEOUT_S, Speech
from tritonclient.utils import InferenceServerException

from chattts_triton.export.repository import export

# About a second of work on the one slot.
LONG = ["你好，世界。今天天气怎么样？"] * 2
OPTIONS: dict[str, Any] = {"SEED": 0, "MAX_NEW_TOKENS": 200}
KEY = "a-key-for-tests"
OTHER = "other"
AT_ONCE_S = 2.0


@pytest.fixture
def server(tiny_repositories: dict[str, Path], tmp_path: Path) -> Iterator[BreakableServer]:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    with breakable_server(
        tiny_repositories["fp32"], "--max-num-seqs=1", f"--admin-key-file={key_file}"
    ) as running:
        yield running


def speak_long(server: BreakableServer, model: str = "chattts") -> list[Speech]:
    # A model of another name has no declared types.
    tensors = {
        "TEXT": np.array([[text.encode()] for text in LONG], dtype=object),
        "SEED": np.full((len(LONG), 1), OPTIONS["SEED"], dtype=np.int64),
        "MAX_NEW_TOKENS": np.full((len(LONG), 1), OPTIONS["MAX_NEW_TOKENS"], dtype=np.int32),
    }
    outputs = server.call(model, tensors)
    return [Speech.of_row(outputs, row) for row in range(len(LONG))]


def post_long(server: BreakableServer) -> tuple[int, Any]:
    status, body = server.post("generate", {"TEXT": LONG[0], **OPTIONS})
    return status, body.get("AUDIO")


def http_status(server: BreakableServer, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{server.http_url}{path}", timeout=TIMEOUT_S) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def is_ready(server: BreakableServer, model: str = "chattts") -> bool:
    return http_status(server, f"/v2/models/{model}/ready") == 200


def test_what_runs_and_what_waits_is_answered_and_what_comes_is_refused(server: BreakableServer):
    expected, expected_http = speak_long(server), post_long(server)
    processes = server.processes()
    num_taken = server.num_taken_over()
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(speak_long, server) for _ in range(2)]
        http_call = pool.submit(post_long, server)
        wait_for(lambda: server.num_taken_over() == num_taken + 3)

        server.background.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_ready(server))
        start_s = time.monotonic()
        refusal = server.refused("你好")
        status, _ = server.post("generate", {"TEXT": "你好"})
        refused_s = time.monotonic() - start_s
        is_live = http_status(server, "/v2/health/live") == 200
        num_unfinished = sum(not call.done() for call in [*calls, http_call])
        answers = [call.result() for call in calls]
        http_answer = http_call.result()

    assert server.background.process.wait(timeout=30) == 0
    assert num_unfinished > 0  # or nothing was in flight when the two were refused
    assert answers == [expected] * 2
    assert http_answer == expected_http
    assert http_answer[0] == 200
    assert refusal.status == "NOT_FOUND"
    assert refusal.text.endswith("'chattts' has no available versions")
    assert status == 404
    assert refused_s < AT_ONCE_S
    assert is_live
    assert is_gone(processes, server.prefix)


def test_a_stream_is_read_to_its_end(server: BreakableServer):
    expected = samples_of(stream(server, LONG[0], **OPTIONS, MODE="quality"))
    with StreamCall(server, LONG[0], **OPTIONS, MODE="quality") as call:
        first = call.chunk()

        server.background.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_ready(server, "chattts_stream"))
        chunks = [first, *call.chunks()]

    assert server.background.process.wait(timeout=30) == 0
    assert samples_of(chunks).tobytes() == expected.tobytes()


def test_a_second_signal_ends_it_at_once(server: BreakableServer):
    processes = server.processes()
    num_taken = server.num_taken_over()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(speak_long, server)
        wait_for(lambda: server.num_taken_over() == num_taken + 1)
        server.background.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_ready(server))

        start_s = time.monotonic()
        server.background.process.send_signal(signal.SIGINT)
        exit_code = server.background.process.wait(timeout=30)
        elapsed_s = time.monotonic() - start_s
        error = call.exception(timeout=30)

    assert exit_code == 0
    assert elapsed_s < AT_ONCE_S
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.UNAVAILABLE"
    assert is_gone(processes, server.prefix)


def test_another_set_of_models_is_drained_as_well(
    tiny_checkpoint: Path, tiny_repositories: dict[str, Path], tmp_path: Path
):
    repository = tmp_path / "repository"
    shutil.copytree(tiny_repositories["fp32"], repository, symlinks=True)
    export(tiny_checkpoint, repository, "fp32", name=OTHER)
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    with breakable_server(repository, "--max-num-seqs=1", f"--admin-key-file={key_file}") as server:
        headers = {"triton-grpc-protocol-admin-key": KEY}
        server.client.load_model(OTHER, headers=headers)
        expected = speak_long(server)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(speak_long, server, OTHER)
            wait_for(lambda: server.num_taken_over(f"{OTHER}_gpt") == 1)

            server.background.process.send_signal(signal.SIGTERM)
            wait_for(lambda: not is_ready(server, OTHER))
            was_done = call.done()
            answer = call.result()

        assert server.background.process.wait(timeout=30) == 0
    assert not was_done
    assert answer == expected
