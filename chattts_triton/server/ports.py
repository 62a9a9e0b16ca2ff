"""The three ports of a server, reserved for as long as it is supervised.

A socket that is bound but never listens keeps a port from being given to anybody as a free one,
while tritonserver, which sets SO_REUSEADDR as we do, can still listen on it. So the port of a
server that is being restarted cannot be lost.
"""

from __future__ import annotations

import errno
import socket
from types import TracebackType

from chattts_triton.errors import ServerStartError
from chattts_triton.server.serve_options import Endpoints, ServeOptions


class ReservedPorts:
    """A context in which the ports of `options` are ours, unless somebody listens on them.

    Raises:
        ServerStartError: On entering: a port is taken, forbidden or named twice, or the host is
            no address of this machine. The message names the port and the option.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._host = options.host
        self._wanted = {
            "--grpc-port": options.grpc_port,
            "--http-port": options.http_port,
            "--metrics-port": options.metrics_port,
        }
        self._sockets: dict[str, socket.socket] = {}

    def __enter__(self) -> ReservedPorts:
        try:
            for option, port in self._wanted.items():
                self._reserve(option, port)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def grpc(self) -> int:
        """The port of the gRPC service."""
        return self._port("--grpc-port")

    @property
    def http(self) -> int:
        """The port of the HTTP service."""
        return self._port("--http-port")

    @property
    def metrics(self) -> int:
        """The port of the Prometheus metrics."""
        return self._port("--metrics-port")

    @property
    def of_clients(self) -> tuple[int, int]:
        """Those that take requests: gRPC and HTTP."""
        return self.grpc, self.http

    @property
    def endpoints(self) -> Endpoints:
        """The addresses to tell a client."""
        return Endpoints(*(f"{self._host}:{p}" for p in (self.grpc, self.http, self.metrics)))

    def describe(self, port: int) -> str:
        """A port and the option that sets it, for an error message."""
        for option in self._sockets:
            if self._port(option) == port:
                return f"port {port} ({option})"
        return f"port {port}"

    def _port(self, option: str) -> int:
        port: int = self._sockets[option].getsockname()[1]
        return port

    def _reserve(self, option: str, port: int) -> None:
        for other in self._sockets:
            if self._port(other) == port:
                raise ServerStartError(f"{option} and {other} both name port {port}")
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sockets[option] = reserved
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((self._host, port))
        except OSError as error:
            raise ServerStartError(_explain(error, option, port, self._host)) from error

    def _close(self) -> None:
        for reserved in self._sockets.values():
            reserved.close()


def _explain(error: OSError, option: str, port: int, host: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} ({option}) is taken by another program"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: not an address of this machine"
    return f"port {port} ({option}): {error.strerror}"
