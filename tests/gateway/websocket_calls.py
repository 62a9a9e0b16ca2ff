"""A WebSocket of the gateway, called as a program would."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gateway_harness import WAIT_S, RunningGateway, pcm16_of
from websockets.client import ClientProtocol
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri


@dataclass
class Outcome:
    """What came for one utterance, up to the message that ends it."""

    started: dict[str, Any] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> np.ndarray:
        """(S,) int16."""
        return pcm16_of(b"".join(self.parts))


class SpeechSocket:
    """One connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def tell(self, kind: str, name: str = "a", **facts: object) -> None:
        self.connection.send(json.dumps({"type": kind, "id": name, **facts}))

    def next(self) -> dict[str, Any] | bytes:
        message = self.connection.recv(timeout=WAIT_S)
        return message if isinstance(message, bytes) else json.loads(message)

    def error(self) -> dict[str, Any]:
        """The next message, which must be an error."""
        message = self.next()
        assert isinstance(message, dict), "audio"
        assert message["type"] == "error", message
        return message

    def outcome(self) -> Outcome:
        outcome = Outcome()
        while True:
            message = self.next()
            if isinstance(message, bytes):
                outcome.parts.append(message)
            elif message["type"] == "started":
                outcome.started = message
            else:
                outcome.end = message
                return outcome

    def speak(self, text: str, name: str = "a", **options: object) -> Outcome:
        self.tell("speak", name, text=text, **options)
        return self.outcome()


@contextlib.contextmanager
def speaking_to_nobody(gateway: RunningGateway, text: str) -> Iterator[None]:
    """A client that asks for a text and then reads nothing; a whole client would read ahead."""
    protocol = ClientProtocol(parse_uri(f"ws://{gateway.host}:{gateway.port}/ws/tts"))
    with socket.create_connection((gateway.host, gateway.port), timeout=WAIT_S) as connection:
        protocol.send_request(protocol.connect())
        connection.sendall(b"".join(protocol.data_to_send()))
        protocol.receive_data(connection.recv(4096))
        protocol.send_text(json.dumps({"type": "speak", "id": "a", "text": text}).encode())
        connection.sendall(b"".join(protocol.data_to_send()))
        yield


@contextlib.contextmanager
def opened(
    gateway: RunningGateway, headers: Mapping[str, str] | None = None
) -> Iterator[SpeechSocket]:
    url = f"ws://{gateway.host}:{gateway.port}/ws/tts"
    with connect(url, additional_headers=headers, proxy=None) as connection:
        yield SpeechSocket(connection)
