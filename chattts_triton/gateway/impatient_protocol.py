"""HTTP connections that must bring the head of a request within a time."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for a head that was begun."""

    read_timeout_s: ClassVar[float]
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._cancel_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._has_head():
            self._cancel_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.read_timeout_s, self._on_timeout)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_timeout(self) -> None:
        self._head_timer = None
        if not self._has_head():
            self.transport.close()

    def _has_head(self) -> bool:
        # A WebSocket has taken the connection over.
        if self.transport.get_protocol() is not self:
            return True
        # uvicorn makes a cycle of a request once its head is whole.
        return self.cycle is not None and not self.cycle.response_complete


def impatient_protocol(read_timeout_s: float) -> type[ImpatientProtocol]:
    """A protocol with its own patience.

    Args:
        read_timeout_s: A connection is dropped when a head takes longer.
    """
    return type("ImpatientProtocol", (ImpatientProtocol,), {"read_timeout_s": read_timeout_s})
