"""What holds for every HTTP request: an id, a limit of its body, an end that frees all it had."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from contextlib import AsyncExitStack
from typing import Any, cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.metrics import GatewayMetrics

LOGGER = logging.getLogger(__name__)

REQUEST_ID = "X-Request-ID"
_GOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NO_ANSWER = 499  # the client went away before there was one


class RequestScope:
    """Middleware around the whole application.

    Args:
        app: What is called.
        metrics: Of the gateway.
        max_body_bytes: Larger bodies are refused.
        read_timeout_s: A body that has not come by then is refused.
    """

    def __init__(
        self, app: ASGIApp, metrics: GatewayMetrics, max_body_bytes: int, read_timeout_s: float
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._read_timeout_s = read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call; what is no HTTP request goes on as it is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        request_id = request_id_of(Headers(scope=scope))
        status = _NO_ANSWER

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        async with AsyncExitStack() as stack:
            state = scope.setdefault("state", {})
            state.update(request_id=request_id, exit_stack=stack, started_s=started_s)
            self._metrics.in_flight.inc()
            stack.callback(self._metrics.in_flight.dec)
            try:
                await self._answer(scope, receive, send_with_id)
            finally:
                self._metrics.requests.labels(_path(scope), str(status)).inc()
                LOGGER.info(
                    "%s: %s %s -> %d in %.3f s",
                    *(request_id, scope["method"], _path(scope), status),
                    time.monotonic() - started_s,
                )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                body = await self._body(scope, receive)
        except TimeoutError:
            limit_s = self._read_timeout_s
            error = ApiError(408, "body_timeout", f"body: not here after {limit_s:g} s")
            await self._refuse(error, scope, receive, send)
        except ApiError as error:
            await self._refuse(error, scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _receive_again(body, receive), send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or None if the client has gone."""
        declared = Headers(scope=scope).get("content-length", "")
        # Python refuses to read numbers of thousands of digits.
        num_bytes = int(declared[:19]) if declared.isdecimal() else 0
        body = bytearray()
        is_whole = False
        while not is_whole:
            if max(len(body), num_bytes) > self._max_body_bytes:
                raise self._too_large()
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        if len(body) > self._max_body_bytes:
            raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ApiError:
        allowed = self._max_body_bytes
        return ApiError(413, "body_too_large", f"body: got more than {allowed} bytes")

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.refusals.labels(error.code).inc()
        # What is left of the body is not read, so the connection is of no further use.
        headers = {**error.headers, "Connection": "close"}
        response = JSONResponse(error.body(), error.status, headers)
        await response(scope, receive, send)


def exit_stack_of(request: Request) -> AsyncExitStack:
    """Is closed when the request is over, however it ends."""
    return cast(AsyncExitStack, request.state.exit_stack)


def _receive_again(body: bytes, receive: Receive) -> Receive:
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def request_id_of(headers: Headers) -> str:
    """The caller's own where it can stand in a log, else a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex


def _path(scope: Scope) -> str:
    """The route's path; what leads nowhere is all one, or a stranger could fill the memory."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "other"
