"""The responses of one decoupled request: any number of them, then exactly one final flag."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from chattts_triton.errors import RequestCancelledError
from chattts_triton.serving.edge import Tensors, TritonEdge


class ResponseStream:
    """Sends for one request; as a context, it ends the request however the block is left.

    `send` and the context belong to one thread, `is_cancelled` may be asked by any.

    Args:
        edge: Builds the responses.
        request: What is answered.
        caller_closes: An error does not end the request either; that is left to `finish`.
    """

    def __init__(self, edge: TritonEdge, request: Any, *, caller_closes: bool = False) -> None:
        self._edge = edge
        self._request = request
        self._caller_closes = caller_closes
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()  # Triton forbids the sender once the final flag is sent
        self._has_ended = False
        self._is_detached = False

    def send(self, outputs: Tensors, *, is_final: bool = False) -> None:
        """Send a response, one of them together with the final flag.

        Raises:
            GenerationError: An output is not as it was declared.
        """
        response = self._edge.response(self._request, outputs)
        if is_final:
            self._end(response)
        else:
            self._sender.send(response)

    def detached(self) -> ResponseStream:
        """Itself, for somebody else to finish: the context leaves it open."""
        self._is_detached = True
        return self

    def finish(self) -> None:
        """Send the final flag alone, unless the request has ended."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._sender.send(flags=self._edge.final_flag)

    def fail(self, error: BaseException) -> None:
        """Send an error as the last response, unless the request has ended."""
        if self._has_ended:
            return
        response = self._edge.error_response(error, self._request)
        if self._caller_closes:
            self._sender.send(response)
        else:
            self._end(response)

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone or has cancelled."""
        with self._lock:
            return not self._has_ended and self._sender.is_cancelled()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None or not self._is_detached:
            # A block that ends too early would look like a whole answer.
            self.fail(error or RequestCancelledError("ended before its last chunk"))

    def _end(self, response: Any) -> None:
        with self._lock:
            self._has_ended = True
            self._sender.send(response, flags=self._edge.final_flag)
