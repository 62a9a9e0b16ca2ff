"""The gateway's HTTP server: one port, bound before anything is said, and a graceful end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from chattts_triton.errors import ServerStartError
from chattts_triton.gateway.impatient_protocol import impatient_protocol

_BACKLOG = 2048


def listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """A socket that is bound; `getsockname` tells the port where 0 was asked for.

    Args:
        host: IPv4 address.
        port: 0 takes a free one.
        write_timeout_s: A connection whose other end takes nothing for so long is dropped.

    Raises:
        ServerStartError: The port is taken or forbidden, or the host is no address of ours.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. It also ends those whose answer is complete here, but not there.
        timeout_ms = max(1, round(write_timeout_s * 1000))
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ServerStartError(_explain(error, host, port)) from error
    return bound


class HttpServer(uvicorn.Server):
    """Serves one application on one socket.

    Args:
        app: The gateway.
        bound: From `listen`; closed at the end.
        announce: Is told HOST:PORT once it listens.
        exit_timeout_s: How long requests in flight may take when it stops.
        read_timeout_s: How long a client may take for the head of a request.
        max_message_bytes: Of a WebSocket; a larger one ends it with code 1009.
        trusted_proxies: Addresses whose X-Forwarded-For is believed.
    """

    def __init__(
        self,
        app: FastAPI,
        bound: socket.socket,
        *,
        announce: Callable[[str], None],
        exit_timeout_s: int,
        read_timeout_s: float,
        max_message_bytes: int = 1 << 20,
        trusted_proxies: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=impatient_protocol(read_timeout_s),
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                ws_max_size=max_message_bytes,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                timeout_graceful_shutdown=exit_timeout_s,
            )
        )
        self._bound = bound
        self._announce = announce
        logging.getLogger("uvicorn.error").addFilter(_is_no_broken_stream)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        await super().startup(sockets)
        if self.started:
            host, port = self._bound.getsockname()[:2]
            self._announce(f"{host}:{port}")

    def serve_until_stopped(self) -> None:
        """Serve until `stop` is called, or in the main thread SIGTERM or SIGINT comes."""
        self.run(sockets=[self._bound])

    def stop(self) -> None:
        """Take no further connection, and end once what is in flight has been answered."""
        self.should_exit = True


def ignore_repeated_signals() -> None:
    """Let a stop by a signal be a good end of the process.

    uvicorn raises the signal anew when it is done, for whoever handled it before it did.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)


def _is_no_broken_stream(record: logging.LogRecord) -> bool:
    """Whether a line is worth having: `StreamedAudio` says itself why it broke off."""
    return record.msg != "ASGI callable returned without completing response."


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} (--port) is taken by another program"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: not an address of this machine"
    return f"port {port} (--port): {error.strerror}"
