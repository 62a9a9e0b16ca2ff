"""Keeps one tritonserver serving: starts it, watches it and its stubs, starts it again.

Triton never restarts a dead stub, and holds the requests of that stub open for ever. So the whole
server is ended as soon as one dies: every open call fails at once, and the next start is clean.

Told to end, Triton would refuse what the requests in flight still ask of its models. So admission
is ended first, by unloading what clients call, and tritonserver when nothing is in flight any more.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from chattts_triton.errors import ServerStartError
from chattts_triton.server import tritonserver
from chattts_triton.server.ports import ReservedPorts
from chattts_triton.server.serve_options import Endpoints, ServeOptions, read_admin_key
from chattts_triton.server.server_process import ServerProcess
from chattts_triton.server.server_setup import MODEL, ServerSetup, check_repository, exit_text
from chattts_triton.server.shared_memory import claimed_prefix, remove_leftovers

MAX_FAILED_STARTS = 3

_POLL_INTERVAL_S = 0.1
_QUESTION_INTERVAL_S = 1.0  # how often Triton is asked which models should have a stub
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_MAX_DELAY_AFTER_READY_S = 2.0  # what could serve once is worth another start soon
_KILL_GRACE_S = 2.0  # Triton counts its exit timeout in whole seconds
_HEALTHY_AFTER_S = 60.0  # a server that ran so long begins with the first delay again
_LOGGER = logging.getLogger(__name__)


class Supervisor:
    """Serves one repository in `run`, from one thread; `stop` may come from a signal handler."""

    def __init__(
        self,
        options: ServeOptions,
        announce: Callable[[Endpoints], None],
        sink: BinaryIO | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            options: What to serve, and where.
            announce: Called each time the models have become ready, also after a restart.
            sink: Takes the output of tritonserver; standard error where it is left out.
        """
        self._options = options
        self._announce = announce
        self._sink = sink or sys.stderr.buffer
        self._is_stopping = False
        self._is_urgent = False

    def stop(self) -> None:
        """Make `run` stop the server and return; said again, it no longer waits for anything."""
        self._is_urgent = self._is_stopping
        self._is_stopping = True

    def run(self) -> None:
        """Serve until `stop` is called.

        Raises:
            ServerStartError: The first start failed, or several in a row after a restart; the
                message says why.
            ModelLoadError: The repository holds no complete export.
        """
        repository = self._options.repository.absolute()
        models = check_repository(repository, verify_hashes=self._options.verify_hashes)
        admin_key = read_admin_key(self._options.admin_key_file)
        installation = tritonserver.find_installation()
        environment = tritonserver.server_environment(installation, self._options, os.environ)
        tritonserver.check_stub(installation.stub, environment)
        remove_leftovers()
        with claimed_prefix() as prefix, ReservedPorts(self._options) as ports:
            self._keep_serving(
                ServerSetup(
                    options=self._options,
                    repository=repository,
                    models=models,
                    installation=installation,
                    environment=environment,
                    prefix=prefix,
                    ports=ports,
                    admin_key=admin_key,
                )
            )

    def _keep_serving(self, setup: ServerSetup) -> None:
        delay_s = _FIRST_DELAY_S
        was_ready = False
        num_failed_starts = 0
        while not self._is_stopping:
            try:
                healthy_s = self._serve_once(setup)
            except ServerStartError as error:
                num_failed_starts += 1
                if not was_ready:  # what is wrong from the beginning is not cured by repetition
                    raise
                if num_failed_starts == MAX_FAILED_STARTS:
                    raise ServerStartError(
                        f"{num_failed_starts} starts in a row failed: {error}"
                    ) from error
                _LOGGER.error("start %d failed: %s", num_failed_starts, error)
            else:
                was_ready = True
                num_failed_starts = 0
                is_healthy = healthy_s >= _HEALTHY_AFTER_S
                delay_s = _FIRST_DELAY_S if is_healthy else min(delay_s, _MAX_DELAY_AFTER_READY_S)
            self._pause(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    def _serve_once(self, setup: ServerSetup) -> float:
        """Serve with one process until it has to be replaced; returns the seconds it was ready."""
        server = setup.start(self._sink)
        try:
            is_ready = self._wait_until_ready(setup, server)
            ready_at = time.monotonic()
            reason = None
            if is_ready:
                self._announce(setup.ports.endpoints)
                reason = self._watch(setup, server, until=lambda: self._is_stopping)
            if reason:
                _LOGGER.error("%s; the server is started again", reason)
            elif self._is_stopping:
                self._end(setup, server)
            return time.monotonic() - ready_at
        finally:
            server.kill()

    def _wait_until_ready(self, setup: ServerSetup, server: ServerProcess) -> bool:
        deadline = time.monotonic() + self._options.start_timeout_s
        while not self._is_stopping:
            if server.exit_code is not None:
                raise ServerStartError(setup.why_it_ended(server))
            if setup.is_ready():
                return True
            if time.monotonic() > deadline:
                raise ServerStartError(
                    f"'{MODEL}' did not become ready in {self._options.start_timeout_s:g} s"
                )
            self._pause(_POLL_INTERVAL_S)
        return False

    def _watch(
        self, setup: ServerSetup, server: ServerProcess, until: Callable[[], bool]
    ) -> str | None:
        """Wait; returns why the server has to be replaced, None once `until` says so."""
        next_question_s = 0.0
        while not until():
            dead_models = server.stubs.ended()
            if time.monotonic() >= next_question_s:
                # A stub may have been loaded and have died before it was ever seen.
                dead_models |= server.stubs.without_stub(setup.loaded_python_models())
                next_question_s = time.monotonic() + _QUESTION_INTERVAL_S
            if server.exit_code is not None:
                return f"tritonserver died ({exit_text(server.exit_code)})"
            for model in dead_models:
                if setup.is_loaded(model):
                    return f"the Python process of model '{model}' died"
                server.stubs.forget(model)  # it ended because its model was unloaded
            time.sleep(_POLL_INTERVAL_S)
        return None

    def _end(self, setup: ServerSetup, server: ServerProcess) -> None:
        """Let what is in flight finish, then have tritonserver end; it may still run afterwards."""
        deadline_s = time.monotonic() + self._options.exit_timeout_s

        def is_over() -> bool:
            if self._is_urgent or time.monotonic() >= deadline_s:
                return True
            # Triton may hold a model for a client that has gone, or is connected and idle.
            return setup.stop_admission() or not server.has_clients(setup.ports.of_clients)

        if reason := self._watch(setup, server, until=is_over):
            _LOGGER.error("%s while the server was stopping", reason)
            return
        server.terminate()
        left_s = max(0.0, deadline_s - time.monotonic())
        end_s = time.monotonic() + min(left_s, tritonserver.CLOSING_S) + _KILL_GRACE_S
        while server.exit_code is None and time.monotonic() < end_s and not self._is_urgent:
            time.sleep(_POLL_INTERVAL_S)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_INTERVAL_S))
