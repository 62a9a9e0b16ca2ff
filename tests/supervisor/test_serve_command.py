"""What one running server offers and refuses; the tests only ask it."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as grpcclient
from serving_harness import (
    KEY,
    ProcessTree,
    hanging_call,
    http_status,
    infer,
    serve_command,
    wait_for,
)
from tritonclient.utils import InferenceServerException

from chattts_triton.cli.main import main
from chattts_triton.server.background_server import BackgroundServer, serve_in_background
from chattts_triton.server.serve_options import GRPC_ADMIN_HEADER, Endpoints


def test_all_three_ports_of_the_ready_line_answer(shared_server: BackgroundServer) -> None:
    assert http_status(shared_server.http, "GET", "/v2/models/chattts/ready") == 200
    assert http_status(shared_server.metrics, "GET", "/metrics") == 200
    with grpcclient.InferenceServerClient(shared_server.grpc) as client:
        assert client.is_model_ready("chattts")


def test_the_server_listens_on_loopback_only(shared_server: BackgroundServer) -> None:
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")  # gRPC listens on a mapped IPv4 address
        for connection in ProcessTree.of(shared_server.process.pid).server.net_connections()
        if connection.status == "LISTEN"
    }

    assert listening == {"127.0.0.1"}


def test_chinese_text_survives_the_c_locale(shared_server: BackgroundServer) -> None:
    assert infer(shared_server, "你好，世界😀") == "你好，世界😀"


@pytest.mark.parametrize(
    ("variable", "value"), [("CHATTTS_MAX_NUM_SEQS", "3"), ("CHATTTS_THREADS", "2")]
)
def test_options_reach_the_model_gpt(
    shared_server: BackgroundServer, variable: str, value: str
) -> None:
    assert infer(shared_server, variable) == value


def test_tritonserver_has_a_thread_for_each_stream_and_asks_who_is_still_there(
    shared_server: BackgroundServer,
) -> None:
    arguments = ProcessTree.of(shared_server.process.pid).server.cmdline()

    assert "--backend-config=python,thread-pool-size=80" in arguments
    assert "--grpc-keepalive-time=60000" in arguments
    assert "--grpc-max-connection-age=3600000" in arguments


def test_a_connection_that_is_too_old_is_replaced_and_no_call_fails(repository: Path) -> None:
    arguments = ["--max-connection-age=1", "--exit-timeout=0"]
    with (
        serve_in_background(repository, arguments=arguments, timeout_s=60) as server,
        grpcclient.InferenceServerClient(server.grpc) as client,
    ):
        triton = ProcessTree.of(server.process.pid).server
        client_ports: set[int] = set()

        def call_and_look() -> bool:
            assert client.is_model_ready("chattts")
            client_ports.update(
                connection.raddr.port
                for connection in triton.net_connections()
                if connection.raddr and connection.laddr.port == int(server.grpc.split(":")[1])
            )
            return len(client_ports) > 2

        wait_for(call_and_look)


RESTRICTED = [
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/gpt/load"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("GET", "/v2/cudasharedmemory/status"),
    ("GET", "/v2/trace/setting"),
    ("GET", "/v2/logging"),
]


@pytest.mark.parametrize(("method", "path"), RESTRICTED)
@pytest.mark.parametrize("key", [None, "", "wrong", KEY[:-1]])
def test_http_refuses_administration_without_the_key(
    shared_server: BackgroundServer, method: str, path: str, key: str | None
) -> None:
    assert http_status(shared_server.http, method, path, key) == 403


def test_http_opens_administration_with_the_key(shared_server: BackgroundServer) -> None:
    statuses = [
        http_status(shared_server.http, method, path, KEY)
        for method, path in RESTRICTED
        if "load" not in path
    ]

    assert statuses == [200] * 5


@pytest.mark.parametrize("headers", [None, {GRPC_ADMIN_HEADER: "wrong"}, {"admin-key": KEY}])
def test_grpc_refuses_administration_without_the_key(
    shared_server: BackgroundServer, headers: dict[str, str] | None
) -> None:
    with grpcclient.InferenceServerClient(shared_server.grpc) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.unload_model("gpt", headers=headers)
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_system_shared_memory_status(headers=headers)


def test_grpc_opens_administration_with_the_key(shared_server: BackgroundServer) -> None:
    headers = {GRPC_ADMIN_HEADER: KEY}

    with grpcclient.InferenceServerClient(shared_server.grpc) as client:
        index = client.get_model_repository_index(headers=headers)
        client.get_system_shared_memory_status(headers=headers)

    ready = {m.name for m in index.models if m.state == "READY"}
    assert ready == {"chattts", "chattts_stream", "gpt", "preprocess", "vocos_decoder"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0_and_leaves_nothing(
    repository: Path, number: signal.Signals
) -> None:
    with serve_command(repository) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        tree = ProcessTree.of(process.pid)

        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)

    assert first_line.startswith(b"ready grpc=127.0.0.1:")
    assert rest == b""
    assert process.returncode == 0
    assert set(tree.stubs) == {"preprocess", "gpt", "vocos_decoder", "chattts_stream"}
    assert tree.is_gone()


def is_loading(supervisor_pid: int, model: str) -> bool:
    try:
        return model in ProcessTree.of(supervisor_pid).stubs
    except (ValueError, psutil.NoSuchProcess):  # the check of the stub comes before the server
        return False


def test_a_signal_while_the_models_load_ends_the_server_with_0(repository: Path) -> None:
    (repository / "wait").touch()
    with serve_command(repository, "--exit-timeout=0") as process:
        wait_for(lambda: is_loading(process.pid, "gpt"))
        tree = ProcessTree.of(process.pid)

        process.terminate()
        output, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert output == b""
    assert tree.is_gone()


def test_a_closed_standard_output_does_not_end_the_server(repository: Path) -> None:
    with serve_command(repository, "--exit-timeout=0") as process:
        assert process.stdout is not None
        endpoints = Endpoints.parse(process.stdout.readline().decode())
        assert endpoints is not None
        process.stdout.close()

        ProcessTree.of(process.pid).server.kill()
        wait_for(lambda: not is_answering(endpoints.metrics))
        wait_for(lambda: is_answering(endpoints.metrics))
        process.terminate()

        assert process.wait(timeout=30) == 0


def is_answering(address: str) -> bool:
    try:
        return http_status(address, "GET", "/metrics") == 200
    except OSError:
        return False


def test_a_request_in_flight_cannot_hold_up_the_end_beyond_the_exit_timeout(
    repository: Path,
) -> None:
    with serve_in_background(repository, arguments=["--exit-timeout=1"], timeout_s=60) as server:
        tree = ProcessTree.of(server.process.pid)
        with hanging_call(server, repository) as call:
            server.process.terminate()

            assert server.process.wait(timeout=15) == 0
            error, _ = call.result(timeout=10)
    assert isinstance(error, InferenceServerException)
    assert tree.is_gone()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grpc-port", "70000"],
        ["--http-port", "-1"],
        ["--metrics-port", "x"],
        ["--max-num-seqs", "0"],
        ["--threads", "none"],
        ["--exit-timeout", "-1"],
        ["--max-connection-age", "1000001"],
        ["--host", "example"],
        ["--unknown"],
    ],
)
def test_wrong_use_exits_with_2_and_names_the_option(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])

    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err
