"""What an operator may set about the gateway, checked once before it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from chattts_triton.errors import InvalidRequestError

DEFAULT_TRITON = "127.0.0.1:8001"
DEFAULT_PORT = 8080
MAX_TIMEOUT_S = 86_400.0
_ORIGIN = re.compile(r"\*|https?://[^/\s*@?#]+")


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The settings of one gateway.

    Attributes:
        triton: HOST:PORT of the gRPC endpoint of each Triton.
        models: Served under these names; the first is taken for OpenAI's names.
        voices_file: The book of voices that is listed; None lists none of the server's own.
        max_characters: Of a text; Triton may have a lower limit.
        max_body_bytes: Of a request.
        timeout_s: Of a request, from the call of Triton to the last byte.
        read_timeout_s: For the head of a request, and again for its body.
        write_timeout_s: How long a client may take nothing of what it is sent.
        probe_interval_s: Between two looks at a Triton that is down.
        cors_origins: Web pages of these may call, such as https://example.org, "*" being all.

    Raises:
        InvalidRequestError: A value is out of range; the message names the field.
    """

    triton: tuple[str, ...] = (DEFAULT_TRITON,)
    models: tuple[str, ...] = ("chattts",)
    voices_file: Path | None = None
    max_characters: int = 5_000
    max_body_bytes: int = 1 << 20
    timeout_s: float = 300.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    probe_interval_s: float = 1.0
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("triton", "models"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise InvalidRequestError.of(name, values, "at least one, each once")
        for name in ("max_characters", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequestError.of(name, getattr(self, name), "a number from 1")
        for name in ("timeout_s", "read_timeout_s", "write_timeout_s", "probe_interval_s"):
            if not 0 < getattr(self, name) <= MAX_TIMEOUT_S:
                wanted = f"above 0, at most {MAX_TIMEOUT_S:g}"
                raise InvalidRequestError.of(name, getattr(self, name), wanted)
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise InvalidRequestError.of("cors_origins", origin, "http(s)://HOST[:PORT] or *")
