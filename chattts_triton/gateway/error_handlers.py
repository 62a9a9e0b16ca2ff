"""Every error as one JSON object in OpenAI's shape."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from chattts_client import ChatTTSClientError
from chattts_triton.gateway.disconnect import ClientDisconnected
from chattts_triton.gateway.errors import ApiError, api_error, described
from chattts_triton.gateway.state import state_of

# 400 is FastAPI's for a body that is not even text.
_HTTP_CODES = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed"}
_CLIENT_GONE = 499


def add_error_handlers(app: FastAPI) -> None:
    """Have an application answer in OpenAI's shape, whatever fails."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(ChatTTSClientError, _on_client_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnected, _on_disconnect)
    app.add_exception_handler(Exception, _on_fault)


def _answer(request: Request, error: ApiError) -> Response:
    state_of(request).metrics.refusals.labels(error.code).inc()
    return JSONResponse(error.body(), error.status, error.headers)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _on_client_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ChatTTSClientError)
    return _answer(request, api_error(error))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # The first part says only that it is the body; behind it may be a place in what is no JSON.
    param = "".join(part for part in first["loc"][1:2] if isinstance(part, str))
    return _answer(request, ApiError(400, *described(param, first), param=param or None))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "invalid_request")
    return _answer(
        request, ApiError(error.status_code, code, str(error.detail), dict(error.headers or {}))
    )


async def _on_disconnect(request: Request, error: Exception) -> Response:
    state_of(request).metrics.disconnects.inc()
    return Response(status_code=_CLIENT_GONE)


async def _on_fault(request: Request, error: Exception) -> Response:
    # Starlette raises it again once this is sent, so that it is logged with its traceback.
    return _answer(request, ApiError(500, "internal_error", "the gateway failed on this request"))
