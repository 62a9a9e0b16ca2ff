"""What happens when a part of a running server dies."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving_harness import (
    KEY,
    ProcessTree,
    hanging_call,
    http_status,
    infer,
    wait_for,
)
from tritonclient.utils import InferenceServerException

from chattts_triton.errors import ServerStartError
from chattts_triton.manifest import PYTHON_MODELS
from chattts_triton.server.background_server import BackgroundServer, serve_in_background
from chattts_triton.server.shared_memory import is_running

RESTART_TIMEOUT_S = 15.0
BACK_SOON_S = 8.0
UNLOAD_ALL = '{"parameters": {"unload_dependents": true}}'


def test_a_killed_stub_fails_the_open_call_at_once_and_the_next_call_succeeds(
    server: BackgroundServer, repository: Path
) -> None:
    before = server.endpoints
    tree = ProcessTree.of(server.process.pid)
    with hanging_call(server, repository) as call:
        killed_at = time.monotonic()
        tree.stubs["gpt"].kill()

        error, failed_at = call.result(timeout=10)
    server.wait_until_ready(RESTART_TIMEOUT_S)

    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.UNAVAILABLE"
    assert failed_at - killed_at < 5
    assert server.endpoints == before
    assert infer(server, "again") == "again"
    assert not tree.has_processes()


def test_a_killed_tritonserver_is_started_again_on_the_same_ports(
    server: BackgroundServer,
) -> None:
    before = server.endpoints
    tree = ProcessTree.of(server.process.pid)

    tree.server.kill()
    server.wait_until_ready(RESTART_TIMEOUT_S)

    assert server.endpoints == before
    assert infer(server, "again") == "again"
    assert not tree.has_processes()


def test_each_process_killed_in_turn_is_back_as_soon_as_the_first(server: BackgroundServer) -> None:
    for name in (*PYTHON_MODELS, "tritonserver"):
        tree = ProcessTree.of(server.process.pid)
        (tree.server if name == "tritonserver" else tree.stubs[name]).kill()

        # A pause that went on doubling would have come to 8 s for the last one.
        server.wait_until_ready(BACK_SOON_S)

        assert infer(server, name) == name


def test_shared_memory_does_not_grow_over_restarts(server: BackgroundServer) -> None:
    tree = ProcessTree.of(server.process.pid)
    before = len(tree.shared_memory())

    tree.stubs["preprocess"].kill()
    server.wait_until_ready(RESTART_TIMEOUT_S)

    assert len(tree.shared_memory()) == before


def test_three_failed_restarts_end_the_command_with_the_reason(
    server: BackgroundServer, repository: Path
) -> None:
    tree = ProcessTree.of(server.process.pid)
    (repository / "fail").touch()

    tree.stubs["gpt"].kill()

    with pytest.raises(ServerStartError, match=r"3 starts in a row failed.*gpt.*weights are gone"):
        server.wait_until_ready(30)
    assert server.process.returncode == 1
    assert tree.is_gone()


def test_b87_an_unloaded_model_is_not_ready_and_is_not_taken_for_a_dead_one(
    server: BackgroundServer, repository: Path
) -> None:
    tree = ProcessTree.of(server.process.pid)
    members = [tree.stubs[model] for model in ("preprocess", "gpt", "vocos_decoder")]
    assert probes(server) == (200, 200)

    status = http_status(
        server.http, "POST", "/v2/repository/models/chattts/unload", KEY, UNLOAD_ALL
    )
    wait_for(lambda: not any(is_running(stub) for stub in members))

    assert status == 200
    assert probes(server) == (200, 400)
    (repository / "wait").touch()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(
            http_status, server.http, "POST", "/v2/repository/models/chattts/load", KEY
        )
        wait_for(lambda: "gpt" in ProcessTree.of(server.process.pid).stubs)
        assert probes(server) == (200, 400)
        (repository / "wait").unlink()
        assert load.result() == 200
    assert probes(server) == (200, 200)
    assert infer(server, "back") == "back"
    # Dead, the reloaded stub must be noticed, and the unloaded ones must not have been.
    assert is_running(tree.server)
    ProcessTree.of(server.process.pid).stubs["gpt"].kill()
    server.wait_until_ready(RESTART_TIMEOUT_S)
    assert not is_running(tree.server)


def probes(server: BackgroundServer) -> tuple[int, int]:
    """What the server says when asked whether it lives, and whether `chattts` can be called."""
    return (
        http_status(server.http, "GET", "/v2/health/live"),
        http_status(server.http, "GET", "/v2/models/chattts/ready"),
    )


def test_a_reloaded_model_is_not_taken_for_a_dead_one(
    server: BackgroundServer, repository: Path
) -> None:
    tree = ProcessTree.of(server.process.pid)
    old_pid = infer(server, "pid")
    model = repository / "gpt" / "1" / "model.py"
    model.write_text(f"{model.read_text()}\n")

    status = http_status(server.http, "POST", "/v2/repository/models/gpt/load", KEY)
    wait_for(lambda: not is_running(tree.stubs["gpt"]))

    assert status == 200
    assert infer(server, "pid") != old_pid
    assert is_running(tree.server)


def test_the_end_of_the_supervisor_ends_the_server(server: BackgroundServer) -> None:
    tree = ProcessTree.of(server.process.pid)

    server.process.kill()

    wait_for(lambda: not tree.has_processes())


def test_the_next_start_on_the_same_ports_removes_what_a_killed_server_left_and_no_more(
    shared_server: BackgroundServer, server: BackgroundServer, tmp_path: Path
) -> None:
    living = ProcessTree.of(shared_server.process.pid)
    living_memory = sorted(living.shared_memory())
    dead = ProcessTree.of(server.process.pid)
    for stub in dead.stubs.values():
        stub.suspend()  # it cannot notice that its server has gone
    os.kill(dead.server.pid, signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    assert dead.has_processes()
    assert dead.shared_memory()

    endpoints = server.endpoints
    ports = {"grpc": endpoints.grpc, "http": endpoints.http, "metrics": endpoints.metrics}
    arguments = [f"--{name}-port={address.split(':')[1]}" for name, address in ports.items()]
    with serve_in_background(
        tmp_path / "repository", arguments=arguments, timeout_s=60
    ) as successor:
        assert dead.is_gone()
        assert successor.endpoints == endpoints
        assert infer(successor, "hello") == "hello"

    assert sorted(living.shared_memory()) == living_memory
    assert infer(shared_server, "hello") == "hello"
