"""`chattts-triton serve`: a model repository on the embedded tritonserver, supervised."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from chattts_triton.cli.announcement import announce
from chattts_triton.cli.argument_types import integer, ipv4, not_negative, port, positive

if TYPE_CHECKING:
    pass

_MAX_CONNECTION_AGE_S = 1_000_000  # Triton wants milliseconds in 32 bits


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model repository on the embedded tritonserver",
        description="Serve an exported model repository. Once the model `chattts` is ready, and "
        "again after each restart, one line `ready grpc=... http=... metrics=...` is written to "
        "standard output; all else goes to standard error. SIGTERM and SIGINT stop it once what "
        "is in flight has been answered; a second one stops it at once.",
    )
    parser.add_argument("--repository", type=Path, default=Path("model_repository"), metavar="DIR")
    parser.add_argument("--host", default="127.0.0.1", type=ipv4, help="IPv4 address to listen on")
    for name, default in (("grpc", 8001), ("http", 8000), ("metrics", 8002)):
        parser.add_argument(
            f"--{name}-port", type=port, default=default, metavar="P", help="0 takes a free port"
        )
    parser.add_argument(
        "--max-num-seqs", type=positive, metavar="N", help="sequences that run at the same time"
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads of each ONNX Runtime session"
    )
    parser.add_argument(
        "--exit-timeout",
        type=not_negative,
        default=30,
        metavar="S",
        help="seconds that requests in flight may take when it stops",
    )
    parser.add_argument(
        "--max-connection-age",
        type=integer(0, _MAX_CONNECTION_AGE_S),
        default=3600,
        metavar="S",
        help="seconds after which a gRPC connection takes no further call; 0 is never",
    )
    parser.add_argument(
        "--connection-grace",
        type=integer(1, _MAX_CONNECTION_AGE_S),
        default=3600,
        metavar="S",
        help="seconds that a call may go on beyond that; a client that has stopped reading is "
        "dropped then",
    )
    parser.add_argument(
        "--trace-config",
        action="append",
        metavar="X",
        help="a setting of tritonserver's option of this name; may be given several times",
    )
    parser.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="F",
        help="holds the value of the header `admin-key` (over gRPC "
        "`triton-grpc-protocol-admin-key`) that opens model control, shared memory, tracing and "
        "logging; closed without it. Local users see the value in tritonserver's command line.",
    )
    parser.add_argument(
        "--verify-hashes",
        action="store_true",
        help="compare the SHA-256 of every exported file with the manifest before the start",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    # Imported here: only this command needs the extra `serve`.
    from chattts_triton.server.serve_options import ServeOptions
    from chattts_triton.server.supervisor import Supervisor

    supervisor = Supervisor(
        ServeOptions(
            repository=args.repository,
            host=args.host,
            grpc_port=args.grpc_port,
            http_port=args.http_port,
            metrics_port=args.metrics_port,
            max_num_seqs=args.max_num_seqs,
            threads=args.threads,
            exit_timeout_s=args.exit_timeout,
            max_connection_age_s=args.max_connection_age,
            connection_grace_s=args.connection_grace,
            trace_config=tuple(args.trace_config or ()),
            admin_key_file=args.admin_key_file,
            verify_hashes=args.verify_hashes,
        ),
        announce=lambda endpoints: announce(endpoints.ready_line()),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    supervisor.run()
    return 0
