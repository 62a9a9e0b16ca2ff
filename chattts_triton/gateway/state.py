"""What the parts of one gateway share: settings, Tritons, admission, metrics, voices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from chattts_triton.gateway.admission import Admission
from chattts_triton.gateway.metrics import GatewayMetrics
from chattts_triton.gateway.settings import GatewaySettings
from chattts_triton.gateway.triton_pool import TritonPool
from chattts_triton.gateway.voice_list import VoiceList


@dataclass(frozen=True)
class GatewayState:
    """Lives as long as the application; every route finds it by `state_of`."""

    settings: GatewaySettings
    admission: Admission
    pool: TritonPool
    metrics: GatewayMetrics
    voices: VoiceList


def attach(app: FastAPI, state: GatewayState) -> None:
    """Give an application its state."""
    app.state.gateway = state


def state_of(connection: HTTPConnection) -> GatewayState:
    """The state of the application that a request or a WebSocket came to."""
    return cast(GatewayState, connection.app.state.gateway)
