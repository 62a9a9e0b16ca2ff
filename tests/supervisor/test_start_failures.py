"""Each way a start can fail says why in one line and exits with 1."""

from __future__ import annotations

import io
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from serving_harness import wait_for
from tiny_repository import break_import

from chattts_triton.cli.main import main
from chattts_triton.errors import ModelLoadError, ServerStartError
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.server.serve_options import ServeOptions
from chattts_triton.server.server_setup import check_repository
from chattts_triton.server.supervisor import Supervisor

FREE_PORTS = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}


def failure_of(repository: Path, *arguments: str) -> str:
    with (
        pytest.raises(ServerStartError) as caught,
        serve_in_background(repository, arguments=["--exit-timeout=0", *arguments], timeout_s=60),
    ):
        pass
    return str(caught.value)


def listening_socket() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--metrics-port"])
def test_a_taken_port_is_named_with_its_option(repository: Path, option: str) -> None:
    with listening_socket() as taken:
        port = taken.getsockname()[1]

        message = failure_of(repository, f"{option}={port}")

    assert message == (f"chattts-triton serve: port {port} ({option}) is taken by another program")


@pytest.mark.parametrize("option", ["grpc_port", "http_port", "metrics_port"])
def test_a_port_lost_while_the_models_load_is_named_too(repository: Path, option: str) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))
        port = rival.getsockname()[1]
        (repository / "wait").touch()
        options = ServeOptions(repository=repository, **{**FREE_PORTS, option: port})
        supervisor = Supervisor(options, announce=lambda _: None, sink=io.BytesIO())
        errors: list[ServerStartError] = []

        def run() -> None:
            try:
                supervisor.run()
            except ServerStartError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: any(Path("/dev/shm").glob(f"chattts_{os.getpid()}_*_backends")))
        rival.listen()
        (repository / "wait").unlink()
        thread.join(30)
        supervisor.stop()
        thread.join(30)

    flag = f"--{option.replace('_', '-')}"
    assert [str(error) for error in errors] == [f"port {port} ({flag}) is taken by another program"]


def test_two_services_cannot_have_one_port(repository: Path) -> None:
    message = failure_of(repository, "--grpc-port=45999", "--http-port=45999")

    assert message.endswith("--http-port and --grpc-port both name port 45999")


def test_a_foreign_address_is_refused(repository: Path) -> None:
    message = failure_of(repository, "--host=192.0.2.1")

    assert message.endswith("--host 192.0.2.1: not an address of this machine")


def test_an_empty_repository_says_how_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["serve", f"--repository={tmp_path}"])

    output = capsys.readouterr()
    assert code == 1
    assert output.out == ""
    assert output.err.endswith("no exported model (run `chattts-triton export` first)\n")


def test_a_repository_without_the_link_to_the_ensemble_is_refused(repository: Path) -> None:
    (repository / "chattts").unlink()

    with pytest.raises(ModelLoadError, match="chattts: wanted a link to chattts_ensemble"):
        check_repository(repository, verify_hashes=False)


def test_b75_a_damaged_config_is_named_before_tritonserver_starts(repository: Path) -> None:
    path = repository / "chattts_ensemble" / "config.pbtxt"
    line = 'input_map { key: "HIDDENS" value: "hiddens" }'
    path.write_text(path.read_text().replace(line, ""))

    message = failure_of(repository)

    assert message == (
        "chattts-triton serve: chattts_ensemble: step vocos_decoder: input HIDDENS: not mapped"
    )


def test_hashes_are_compared_only_on_request(tiny_repositories, tmp_path: Path) -> None:
    repository = tmp_path / "copy"
    shutil.copytree(tiny_repositories["int8"], repository, symlinks=True)
    (path,) = repository.glob("gpt/1/*/gpt.onnx.data")
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)

    models = check_repository(repository, verify_hashes=False)

    assert models == ["chattts", "chattts_stream"]
    with pytest.raises(ModelLoadError, match=r"gpt\.onnx\.data: SHA-256"):
        check_repository(repository, verify_hashes=True)


def test_b95_a_model_that_cannot_be_imported_is_quoted(repository: Path) -> None:
    break_import(repository, "gpt")

    message = failure_of(repository)

    # How Triton ends, by an exit code or an abort, depends on what else was loading.
    assert message.startswith("chattts-triton serve: tritonserver ended (")
    assert message.endswith("model 'gpt': ModuleNotFoundError: No module named 'no_such_module'")


def test_the_first_line_of_an_error_in_initialize_is_quoted(repository: Path) -> None:
    (repository / "fail").touch()

    message = failure_of(repository)

    assert message.endswith("model 'gpt': RuntimeError: the weights are gone")


def test_a_damaged_configuration_is_quoted(repository: Path) -> None:
    (repository / "gpt" / "config.pbtxt").write_text("backend: 7")

    message = failure_of(repository)

    assert "gpt" in message
    assert message.count("\n") == 0


def test_a_model_that_never_becomes_ready_is_given_up(repository: Path) -> None:
    (repository / "wait").touch()
    options = ServeOptions(repository=repository, start_timeout_s=1.0, **FREE_PORTS)

    with pytest.raises(ServerStartError, match="'chattts' did not become ready in 1 s"):
        Supervisor(options, announce=lambda _: None, sink=io.BytesIO()).run()

    assert not list(Path("/dev/shm").glob(f"chattts_{os.getpid()}_*"))


@pytest.mark.parametrize("content", [None, "", "two words", "a:b", "schlüssel"])
def test_an_admin_key_that_cannot_be_a_header_is_refused(
    repository: Path, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    options = ServeOptions(repository=repository, admin_key_file=path, **FREE_PORTS)

    with pytest.raises(ServerStartError, match=f"--admin-key-file {path}: "):
        Supervisor(options, announce=lambda _: None, sink=io.BytesIO()).run()
