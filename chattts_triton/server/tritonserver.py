"""Where tritonserver is, what its Python stub needs to load, and the command line to start it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chattts_triton.errors import ServerStartError
from chattts_triton.server.ports import ReservedPorts
from chattts_triton.server.serve_options import ADMIN_HEADER, ServeOptions
from chattts_triton.server.shared_memory import STUB_NAME

PACKAGE = "nvidia-pytriton"
RESTRICTED_APIS = "shared-memory,model-repository,trace,logging"
CLOSING_S = 5  # to unload the members and send last bytes; Triton waits for idle connections too

_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
_PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_STUB_LIBRARY = re.compile(rb"libpython(\d+\.\d+)\.so")
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: ([^:\s]+): (.*)")
_STUB_TIMEOUT_S = 20.0
# A client whose machine has gone answers no ping; gRPC would ask only after 2 hours.
_KEEPALIVE_TIME_S = 60
_KEEPALIVE_TIMEOUT_S = 20


@dataclass(frozen=True)
class Installation:
    """The files of one tritonserver.

    A wheel has a stub for each version of Python, beside the backend; an installed server has one
    stub in its backend directory, which then is complete as it is.
    """

    binary: Path
    backends: Path
    stub: Path
    libraries: Path | None = None
    is_wheel: bool = False


def find_installation(search_path: str | None = None) -> Installation:
    """Find the server on PATH, else the one in the wheel nvidia-pytriton.

    Raises:
        ServerStartError: Neither is there, it may not be executed, or it has no stub for this
            version of Python.
    """
    found = shutil.which("tritonserver", path=search_path)
    if found:
        backends = Path(found).resolve().parent.parent / "backends"
        installation = Installation(Path(found), backends, backends / "python" / STUB_NAME)
    else:
        installation = _wheel_installation()
    if not os.access(installation.binary, os.X_OK):
        raise ServerStartError(f"{installation.binary}: not executable; reinstall {PACKAGE}")
    if not installation.stub.is_file():
        raise ServerStartError(
            f"{installation.stub}: missing; this tritonserver has no Python {_PYTHON_VERSION} stub"
        )
    return installation


def server_environment(
    installation: Installation, options: ServeOptions, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of tritonserver, which its stubs and so the models get as well.

    The stub's interpreter is isolated: it reads no PYTHON variable, but looks for `python3` on
    PATH, and from there finds the virtual environment and its packages.

    Raises:
        ServerStartError: There is no `python3` beside this interpreter.
    """
    environment = dict(inherited)
    directory = Path(sys.executable).parent
    python3 = directory / "python3"
    if python3.resolve() != Path(sys.executable).resolve():
        raise ServerStartError(
            f"{python3}: is not {sys.executable}; Triton's Python stub finds packages through it"
        )
    _put_first(environment, "PATH", directory)
    if (libraries := Path(sysconfig.get_config_var("LIBDIR") or "")) and any(
        libraries.glob(f"libpython{_PYTHON_VERSION}*.so*")
    ):
        _put_first(environment, "LD_LIBRARY_PATH", libraries)
    if installation.libraries is not None:
        _put_first(environment, "LD_LIBRARY_PATH", installation.libraries)
    if options.max_num_seqs is not None:
        environment["CHATTTS_MAX_NUM_SEQS"] = str(options.max_num_seqs)
    if options.threads is not None:
        environment["CHATTTS_THREADS"] = str(options.threads)
    return environment


def check_stub(stub: Path, environment: Mapping[str, str]) -> None:
    """Run the stub without arguments, which tells at once whether the loader accepts it.

    Raises:
        ServerStartError: It is built for another Python, or a shared library is missing.
    """
    match = _STUB_LIBRARY.search(stub.read_bytes())
    built_for = match[1].decode() if match else "unknown"
    if built_for != _PYTHON_VERSION:
        raise ServerStartError(f"{stub}: built for Python {built_for}, this is {_PYTHON_VERSION}")
    try:
        result = subprocess.run(
            [stub], env=environment, capture_output=True, timeout=_STUB_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerStartError(f"{stub}: cannot be run: {error}") from error
    output = result.stderr.decode(errors="replace")
    if missing := explain_missing_library(output):
        raise ServerStartError(f"Triton's Python stub cannot load: {missing}")


def explain_missing_library(output: str) -> str | None:
    """What the dynamic loader complained about, with the Debian package that cures it."""
    match = _MISSING_LIBRARY.search(output)
    if not match:
        return None
    library, reason = match.groups()
    python = re.match(r"libpython(\d+\.\d+)\.so", library)
    advice = f"; install the Debian package libpython{python[1]}" if python else ""
    return f"{library}: {reason.strip()}{advice}"


def assemble_backends(installation: Installation, directory: Path) -> Path:
    """The directory for `--backend-directory`; that of a wheel is put together from links."""
    if not installation.is_wheel:
        return installation.backends
    target = directory / "python"
    target.mkdir(parents=True)
    for name in _BACKEND_FILES:
        (target / name).symlink_to(installation.backends / "python" / name)
    (target / STUB_NAME).symlink_to(installation.stub)
    return directory


def command_line(
    installation: Installation,
    options: ServeOptions,
    ports: ReservedPorts,
    *,
    backends: Path,
    prefix: str,
    models: list[str],
    admin_key: str,
    num_call_threads: int,
) -> list[str]:
    """The arguments of tritonserver, which is to run with the repository as its directory.

    The repository is named `.`: an isolated stub under LC_ALL=C cannot open a path that holds a
    character outside ASCII. Configurations are not completed by Triton, which would start every
    stub twice. `num_call_threads` is how many calls of other models a Python model may make at the
    same time.
    """
    restricted = f"{RESTRICTED_APIS}:{ADMIN_HEADER}={admin_key}"
    return [
        str(installation.binary),
        "--model-repository=.",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,thread-pool-size={num_call_threads}",
        "--disable-auto-complete-config",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        f"--grpc-address={options.host}",
        f"--grpc-port={ports.grpc}",
        f"--http-address={options.host}",
        f"--http-port={ports.http}",
        f"--metrics-address={options.host}",
        f"--metrics-port={ports.metrics}",
        f"--grpc-restricted-protocol={restricted}",
        f"--http-restricted-api={restricted}",
        f"--exit-timeout-secs={min(options.exit_timeout_s, CLOSING_S)}",
        *_connection_arguments(options),
        *(f"--trace-config={setting}" for setting in options.trace_config),
    ]


def _connection_arguments(options: ServeOptions) -> list[str]:
    """When a gRPC connection is given up: its client has gone, or has stopped reading."""
    arguments = [
        f"--grpc-keepalive-time={_KEEPALIVE_TIME_S * 1000}",
        f"--grpc-keepalive-timeout={_KEEPALIVE_TIMEOUT_S * 1000}",
        "--grpc-http2-max-pings-without-data=0",  # or a call without data is given up on after 2
    ]
    if options.max_connection_age_s:
        arguments += [
            f"--grpc-max-connection-age={options.max_connection_age_s * 1000}",
            f"--grpc-max-connection-age-grace={options.connection_grace_s * 1000}",
        ]
    return arguments


def _wheel_installation() -> Installation:
    spec = importlib.util.find_spec("pytriton")  # found, not imported
    locations = spec.submodule_search_locations if spec else None
    if not locations:
        raise ServerStartError(
            f"no tritonserver on PATH and no {PACKAGE} installed (pip install {PACKAGE}==0.7.0)"
        )
    package = Path(locations[0])
    root = package / "tritonserver"
    stubs = root / "python_backend_stubs"
    return Installation(
        binary=root / "bin" / "tritonserver",
        backends=root / "backends",
        stub=stubs / _PYTHON_VERSION / STUB_NAME,
        libraries=package.parent / "nvidia_pytriton.libs",
        is_wheel=True,
    )


def _put_first(environment: dict[str, str], name: str, directory: Path) -> None:
    former = environment.get(name)
    environment[name] = f"{directory}{os.pathsep}{former}" if former else str(directory)
