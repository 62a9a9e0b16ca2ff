"""Finding tritonserver, and what keeps its Python stub from loading."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from chattts_triton.errors import ModelLoadError, ServerStartError
from chattts_triton.server.call_threads import NUM_SPARE_THREADS, num_call_threads
from chattts_triton.server.serve_options import ServeOptions
from chattts_triton.server.shared_memory import STUB_NAME
from chattts_triton.server.tritonserver import (
    Installation,
    assemble_backends,
    check_stub,
    explain_missing_library,
    find_installation,
    server_environment,
)

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER_PYTHON = "3.10"


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def wheel_at(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `pytriton` package with a tritonserver and a stub; returns the tritonserver."""
    root = package / "tritonserver"
    executable(root / "python_backend_stubs" / PYTHON / STUB_NAME)
    spec = importlib.machinery.ModuleSpec("pytriton", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    return executable(root / "bin" / "tritonserver")


def test_a_tritonserver_on_path_wins_and_keeps_its_own_backends(tmp_path: Path) -> None:
    binary = executable(tmp_path / "bin" / "tritonserver")
    stub = executable(tmp_path / "backends" / "python" / STUB_NAME)

    installation = find_installation(str(binary.parent))

    assert installation == Installation(binary, tmp_path / "backends", stub)
    assert assemble_backends(installation, tmp_path / "unused") == tmp_path / "backends"
    assert not (tmp_path / "unused").exists()


def test_without_one_on_path_the_wheel_is_taken() -> None:
    installation = find_installation(search_path="")

    assert installation.is_wheel
    assert "pytriton" not in sys.modules


def test_a_missing_tritonserver_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ServerStartError, match="pip install nvidia-pytriton"):
        find_installation(search_path="")


def test_a_tritonserver_that_may_not_be_executed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = wheel_at(tmp_path / "pytriton", monkeypatch)
    binary.chmod(0o644)

    with pytest.raises(ServerStartError, match=f"{binary}: not executable"):
        find_installation(search_path="")


def test_a_python_without_a_stub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel_at(tmp_path / "pytriton", monkeypatch)
    (tmp_path / "pytriton/tritonserver/python_backend_stubs" / PYTHON / STUB_NAME).unlink()

    with pytest.raises(ServerStartError, match=f"no Python {PYTHON} stub"):
        find_installation(search_path="")


def test_b95_a_stub_for_another_python_is_refused() -> None:
    stub = find_installation("").stub
    other = stub.parent.parent / OTHER_PYTHON / STUB_NAME

    with pytest.raises(ServerStartError, match=f"built for Python {OTHER_PYTHON}, this is"):
        check_stub(other, os.environ)


def test_a_missing_libpython_names_the_debian_package(tmp_path: Path) -> None:
    installation = find_installation("")
    content = installation.stub.read_bytes()
    name = f"libpython{PYTHON}.so.".encode()
    stub = executable(tmp_path / STUB_NAME)
    stub.write_bytes(content.replace(name + b"1.0", name + b"9.9"))
    environment = server_environment(installation, ServeOptions(), os.environ)

    with pytest.raises(ServerStartError) as caught:
        check_stub(stub, environment)

    assert str(caught.value) == (
        f"Triton's Python stub cannot load: libpython{PYTHON}.so.9.9: cannot open shared object "
        f"file: No such file or directory; install the Debian package libpython{PYTHON}"
    )


def test_another_missing_library_is_named_without_advice() -> None:
    output = "stub: error while loading shared libraries: libexpat.so.1: cannot open: no file\n"

    assert explain_missing_library(output) == "libexpat.so.1: cannot open: no file"


def test_a_stub_that_is_no_program_is_refused(tmp_path: Path) -> None:
    stub = executable(tmp_path / STUB_NAME, f"libpython{PYTHON}.so")

    with pytest.raises(ServerStartError, match="cannot be run"):
        check_stub(stub, os.environ)


def test_the_stub_finds_this_interpreter_first_on_path() -> None:
    installation = find_installation("")

    environment = server_environment(installation, ServeOptions(), {"PATH": "/bin"})

    assert environment["PATH"] == f"{Path(sys.executable).parent}:/bin"
    check_stub(installation.stub, environment)


def test_an_interpreter_without_python3_beside_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = find_installation("")
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "python")))

    with pytest.raises(ServerStartError, match="python3: is not"):
        server_environment(installation, ServeOptions(), os.environ)


def test_options_that_were_not_given_leave_the_environment_alone() -> None:
    environment = server_environment(find_installation(""), ServeOptions(), {})

    assert not [name for name in environment if name.startswith("CHATTTS_")]


@pytest.mark.parametrize(
    ("parameter", "environment", "num_streams"),
    [
        ("64", {}, 64),
        ("100", {}, 100),
        ("100", {"CHATTTS_MAX_STREAMS": "7"}, 7),
    ],
)
def test_every_stream_has_a_thread_for_its_calls(
    repository: Path, parameter: str, environment: dict[str, str], num_streams: int
) -> None:
    set_max_streams(repository, parameter)

    assert num_call_threads(repository, environment) == num_streams + NUM_SPARE_THREADS


def test_a_malformed_number_of_streams_is_named(repository: Path) -> None:
    with pytest.raises(ModelLoadError, match="max_streams: got 'many'"):
        num_call_threads(repository, {"CHATTTS_MAX_STREAMS": "many"})


def set_max_streams(repository: Path, value: str) -> None:
    path = repository / "chattts_stream" / "config.pbtxt"
    former = 'key: "max_streams" value { string_value: "64" }'
    config = path.read_text()
    assert former in config
    path.write_text(config.replace(former, former.replace("64", value)))
