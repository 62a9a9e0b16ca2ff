"""The ASGI application of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from chattts_triton import __version__
from chattts_triton.gateway.admission import Admission, OpenAdmission
from chattts_triton.gateway.error_handlers import add_error_handlers
from chattts_triton.gateway.metrics import GatewayMetrics
from chattts_triton.gateway.request_scope import REQUEST_ID, RequestScope
from chattts_triton.gateway.routes import router
from chattts_triton.gateway.settings import GatewaySettings
from chattts_triton.gateway.speaking import FINISH_REASON, MODE, SEED, WARNINGS
from chattts_triton.gateway.state import GatewayState, attach
from chattts_triton.gateway.triton_pool import TritonPool
from chattts_triton.gateway.voice_list import VoiceList
from chattts_triton.gateway.websocket import router as websocket_router

_DESCRIPTION = (
    "ChatTTS on Triton by HTTP. Errors have OpenAI's shape; "
    "docs/gateway.md has their codes, and every header."
)
_EXPOSED_HEADERS = (
    *(SEED, MODE, FINISH_REASON, WARNINGS, REQUEST_ID, "Retry-After"),
    *(f"X-RateLimit-{fact}-Requests" for fact in ("Limit", "Remaining", "Reset")),
    *(f"X-RateLimit-{fact}-Characters" for fact in ("Limit", "Remaining", "Reset")),
)


def create_app(
    settings: GatewaySettings,
    admission: Admission | None = None,
    metrics: GatewayMetrics | None = None,
) -> FastAPI:
    """An application that serves one gateway; it connects when its lifespan begins.

    Args:
        settings: Of the gateway.
        admission: Is asked about each request; None lets everything in. One that is an
            asynchronous context manager is entered for as long as the application lives.
        metrics: Where it counts; None makes new ones.
    """
    metrics = metrics or GatewayMetrics()
    pool = TritonPool(
        settings.triton,
        settings.models,
        timeout_s=settings.timeout_s,
        probe_interval_s=settings.probe_interval_s,
        on_error=metrics.count_upstream_error,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if isinstance(admission, AbstractAsyncContextManager):
                await stack.enter_async_context(admission)
            await stack.enter_async_context(pool)
            yield

    app = _Application(
        title="chattts-triton gateway",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
    )
    attach(
        app,
        GatewayState(
            settings=settings,
            admission=admission or OpenAdmission(),
            pool=pool,
            metrics=metrics,
            voices=VoiceList(settings.voices_file),
        ),
    )
    app.include_router(router)
    app.include_router(websocket_router)
    add_error_handlers(app)
    app.add_middleware(
        RequestScope,
        metrics=metrics,
        max_body_bytes=settings.max_body_bytes,
        read_timeout_s=settings.read_timeout_s,
    )
    if settings.cors_origins:
        # Outside of all else, so that a browser can read refusals too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "X-Request-ID"],
            expose_headers=_EXPOSED_HEADERS,
        )
    return app


class _Application(FastAPI):
    """FastAPI, whose schema does not promise the answers that our handlers replace."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI schema."""
        if self.openapi_schema is None:
            schema = super().openapi()
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(name, None)
            self.openapi_schema = schema
        return self.openapi_schema
