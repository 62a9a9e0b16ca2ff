"""`chattts-triton gateway`: an OpenAI-compatible HTTP API in front of one Triton or several."""

from __future__ import annotations

import argparse
from pathlib import Path

from chattts_triton.cli.announcement import announce
from chattts_triton.cli.argument_types import (
    host_and_port,
    ipv4,
    not_negative,
    port,
    positive,
    seconds,
)
from chattts_triton.cli.protection_arguments import add_arguments, protection_settings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "gateway",
        help="serve an OpenAI-compatible HTTP API in front of Triton",
        description="Serve an HTTP API in front of Triton. Once it listens, one line "
        "`ready http=...` is written to standard output; all else goes to standard error. Triton "
        "need not be up: until it is, requests get 503. SIGTERM and SIGINT stop the gateway once "
        "what is in flight has been answered.",
    )
    parser.add_argument(
        "--triton",
        action="append",
        type=host_and_port,
        metavar="HOST:PORT",
        help="gRPC endpoint of a Triton (default: 127.0.0.1:8001); may be given several times",
    )
    parser.add_argument("--host", default="127.0.0.1", type=ipv4, help="IPv4 address to listen on")
    parser.add_argument(
        "--port", type=port, default=8080, metavar="P", help="0 takes a free port (default: 8080)"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="a model that may be called (default: chattts); may be given several times",
    )
    parser.add_argument(
        "--voices",
        type=Path,
        metavar="FILE",
        help="the server's voices.json, for the list of voices",
    )
    parser.add_argument(
        "--max-characters", type=positive, default=5_000, metavar="N", help="of a text"
    )
    parser.add_argument(
        "--max-body-bytes", type=positive, default=1 << 20, metavar="N", help="of a request"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=300.0, metavar="S", help="of a request at Triton"
    )
    parser.add_argument(
        "--read-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="for the head of a request, and again for its body",
    )
    parser.add_argument(
        "--write-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="how long a client may take nothing of what it is sent",
    )
    parser.add_argument(
        "--exit-timeout",
        type=not_negative,
        default=30,
        metavar="S",
        help="seconds that requests in flight may take when it stops",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        metavar="ADDRESS",
        help="a proxy whose X-Forwarded-For is believed; may be given several times",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    # Imported here: only this command needs the extra `gateway`.
    from chattts_triton.gateway import http_server
    from chattts_triton.gateway.app import create_app
    from chattts_triton.gateway.metrics import GatewayMetrics
    from chattts_triton.gateway.protection.protection import Protection
    from chattts_triton.gateway.settings import DEFAULT_TRITON, GatewaySettings

    settings = GatewaySettings(
        triton=tuple(args.triton or (DEFAULT_TRITON,)),
        models=tuple(args.model or ("chattts",)),
        voices_file=args.voices,
        max_characters=args.max_characters,
        max_body_bytes=args.max_body_bytes,
        timeout_s=args.timeout,
        read_timeout_s=args.read_timeout,
        write_timeout_s=args.write_timeout,
        cors_origins=tuple(args.cors_origin or ()),
    )
    metrics = GatewayMetrics()
    protection = Protection(protection_settings(args), metrics.registry)
    server = http_server.HttpServer(
        create_app(settings, protection, metrics),
        http_server.listen(args.host, args.port, args.write_timeout),
        announce=lambda address: announce(f"ready http={address}"),
        exit_timeout_s=args.exit_timeout,
        read_timeout_s=args.read_timeout,
        max_message_bytes=args.max_body_bytes,
        trusted_proxies=tuple(args.trusted_proxy or ()),
    )
    http_server.ignore_repeated_signals()
    server.serve_until_stopped()
    return 0
