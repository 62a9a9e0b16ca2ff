"""What stays the same over the restarts of one server: how it is started, and asked how it is."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chattts_triton.errors import ServerStartError
from chattts_triton.manifest import DEFAULT_NAME, PYTHON_MODELS, STREAM_NAME, load_manifest
from chattts_triton.server import tritonserver
from chattts_triton.server.call_threads import num_call_threads
from chattts_triton.server.ports import ReservedPorts
from chattts_triton.server.serve_options import ADMIN_HEADER, ServeOptions
from chattts_triton.server.server_process import ServerProcess
from chattts_triton.server.shared_memory import SHARED_MEMORY, check_free_space
from chattts_triton.serving.model_config import check_configs

MODEL = DEFAULT_NAME  # other exports are loaded and unloaded by whoever has the admin key

_STREAM_SUFFIX = STREAM_NAME.removeprefix(DEFAULT_NAME)  # other sets have it as well
_ANY_HOST = "0.0.0.0"
_ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServerSetup:
    """A checked repository, an installation that loads, and a prefix and ports that are ours."""

    options: ServeOptions
    repository: Path
    models: list[str]
    installation: tritonserver.Installation
    environment: dict[str, str]
    prefix: str
    ports: ReservedPorts
    admin_key: str

    def start(self, sink: BinaryIO) -> ServerProcess:
        """Start one process.

        Raises:
            ServerStartError: Shared memory is too small, or the binary cannot be run.
        """
        check_free_space(len(python_models(self.repository) & {*PYTHON_MODELS}))
        try:
            backends = tritonserver.assemble_backends(
                self.installation, SHARED_MEMORY / f"{self.prefix}backends"
            )
            return ServerProcess(
                tritonserver.command_line(
                    self.installation,
                    self.options,
                    self.ports,
                    backends=backends,
                    prefix=self.prefix,
                    models=self.models,
                    admin_key=self.admin_key,
                    num_call_threads=num_call_threads(self.repository, self.environment),
                ),
                directory=self.repository,
                environment=self.environment,
                prefix=self.prefix,
                sink=sink,
            )
        except OSError as error:
            name = error.filename or self.installation.binary
            raise ServerStartError(f"{name}: {error.strerror}") from error

    def is_ready(self) -> bool:
        """Whether every model can be called and the metrics are there as well."""
        ports = self.ports
        paths = [(ports.http, f"/v2/models/{model}/ready") for model in self.models]
        paths.append((ports.metrics, "/metrics"))
        return all(self._ask(port, "GET", path) is not None for port, path in paths)

    def is_loaded(self, model: str) -> bool:
        """Whether Triton takes a model for loaded, which it also does when its stub has died.

        A server that does not answer is taken for one that has the model loaded.
        """
        loaded = self._loaded_models()
        return loaded is None or model in loaded

    def loaded_python_models(self) -> set[str]:
        """Those of the loaded models that each must have a Python stub."""
        return (self._loaded_models() or set()) & python_models(self.repository)

    def stop_admission(self) -> bool:
        """Unload the models that clients call; returns whether nothing is left in flight there.

        Triton refuses what comes from then on, and unloads a model when its last request has
        ended. The members stay loaded, since those requests still need them.
        """
        states = self._model_states()
        if states is None:
            return False
        members = {
            model for model in python_models(self.repository) if not model.endswith(_STREAM_SUFFIX)
        }
        entries = {model: state for model, state in states.items() if model not in members}
        for model in (m for m, state in entries.items() if state == "READY"):
            self._ask(self.ports.http, "POST", f"/v2/repository/models/{model}/unload")
        return not any(state in ("READY", "UNLOADING") for state in entries.values())

    def _loaded_models(self) -> set[str] | None:
        states = self._model_states()
        if states is None:
            return None
        return {model for model, state in states.items() if state == "READY"}

    def _model_states(self) -> dict[str, str | None] | None:
        """The state of each model of the repository; None when the server does not answer."""
        answer = self._ask(self.ports.http, "POST", "/v2/repository/index")
        if answer is None:
            return None
        return {entry["name"]: entry.get("state") for entry in json.loads(answer)}

    def why_it_ended(self, server: ServerProcess) -> str:
        """The reason why a process ended before it was ready, in one line."""
        code = server.exit_code
        server.kill()  # its stubs hold the pipe of the log open
        port = server.log.taken_port()
        if port is not None:
            return f"{self.ports.describe(port)} is taken by another program"
        return f"tritonserver ended ({exit_text(code)}): {server.log.reason()}"

    def _ask(self, port: int, method: str, path: str) -> bytes | None:
        """The body of a good answer; None when it is refused, late or another one."""
        host = "127.0.0.1" if self.options.host == _ANY_HOST else self.options.host
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_TIMEOUT_S)
        try:
            connection.request(method, path, headers={ADMIN_HEADER: self.admin_key})
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return body if response.status == http.HTTPStatus.OK else None


def check_repository(repository: Path, *, verify_hashes: bool) -> list[str]:
    """The names of the models to load from a repository that holds a complete export.

    Args:
        repository: What an export wrote.
        verify_hashes: Compare every file's SHA-256 with the manifest, not only its size.

    Raises:
        ModelLoadError: Something is missing or does not fit; the message names it.
    """
    load_manifest(repository).verify(repository, hashes=verify_hashes)
    check_configs(repository)
    return [MODEL, STREAM_NAME]


def python_models(repository: Path) -> set[str]:
    """The models of a repository that are run by Triton's Python backend."""
    return {path.parent.parent.name for path in repository.glob("*/1/model.py")}


def exit_text(code: int | None) -> str:
    """How a process ended, for a message."""
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
