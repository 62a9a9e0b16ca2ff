"""What the operator may set about a served repository, and the addresses it then answers at."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from chattts_triton.errors import ServerStartError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_HTTP_PORT = 8000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002
DEFAULT_EXIT_TIMEOUT_S = 30
DEFAULT_CONNECTION_AGE_S = 3600
DEFAULT_CONNECTION_GRACE_S = 3600  # the longest text plays for 50 minutes
DEFAULT_REPOSITORY = Path("model_repository")

ADMIN_HEADER = "admin-key"  # over HTTP; gRPC wants the prefix below before it
GRPC_ADMIN_HEADER = f"triton-grpc-protocol-{ADMIN_HEADER}"

_READY_LINE = re.compile(r"ready grpc=(\S+) http=(\S+) metrics=(\S+)")
_ADMIN_KEY = re.compile(r"[A-Za-z0-9._~+/-]+")  # Triton cuts the option at `:`, `,` and `=`


@dataclass(frozen=True)
class ServeOptions:
    """One served repository; a port of 0 is replaced by a free one.

    Attributes:
        max_num_seqs: Of the engines; None leaves it to the configuration of `gpt`.
        threads: Of each session; None leaves it to the configuration of the models.
        exit_timeout_s: How long what is in flight may take once the server is to stop.
        max_connection_age_s: After so long a gRPC connection takes no further call; 0 is for ever.
        connection_grace_s: How long a call may go on beyond that age, also one that nobody reads.
        trace_config: Settings of Triton's tracing, each as tritonserver takes it.
        verify_hashes: Compare every file with the manifest, not only its size.
    """

    repository: Path = DEFAULT_REPOSITORY
    host: str = DEFAULT_HOST
    grpc_port: int = DEFAULT_GRPC_PORT
    http_port: int = DEFAULT_HTTP_PORT
    metrics_port: int = DEFAULT_METRICS_PORT
    max_num_seqs: int | None = None
    threads: int | None = None
    exit_timeout_s: int = DEFAULT_EXIT_TIMEOUT_S
    max_connection_age_s: int = DEFAULT_CONNECTION_AGE_S
    connection_grace_s: int = DEFAULT_CONNECTION_GRACE_S
    trace_config: tuple[str, ...] = ()
    start_timeout_s: float = 600.0
    admin_key_file: Path | None = None
    verify_hashes: bool = False


@dataclass(frozen=True)
class Endpoints:
    """Where a ready server answers, each as `host:port`."""

    grpc: str
    http: str
    metrics: str

    def ready_line(self) -> str:
        """The line that tells a caller of `chattts-triton serve` that it may send requests."""
        return f"ready grpc={self.grpc} http={self.http} metrics={self.metrics}"

    @classmethod
    def parse(cls, line: str) -> Endpoints | None:
        """The endpoints in a ready line; None when it is another line."""
        match = _READY_LINE.fullmatch(line.strip())
        return cls(*match.groups()) if match else None


def read_admin_key(path: Path | None) -> str:
    """The header value that opens the restricted protocols; without a file one nobody knows.

    Raises:
        ServerStartError: The file cannot be read, or its content cannot be a header value.
    """
    if path is None:
        return secrets.token_hex(32)
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ServerStartError(f"--admin-key-file {path}: cannot be read: {error}") from error
    if not _ADMIN_KEY.fullmatch(key):
        raise ServerStartError(
            f"--admin-key-file {path}: wanted one line of letters, digits and . _ ~ + / -"
        )
    return key
