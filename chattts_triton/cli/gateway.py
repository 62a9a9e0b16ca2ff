"""`chattts-triton gateway`: an OpenAI-compatible HTTP API in front of one Triton or several."""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
import sys
from pathlib import Path

from chattts_triton.cli.protection_arguments import add_arguments, protection_settings

_MAX_PORT = 65_535
_MAX_TIMEOUT_S = 86_400.0


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
        type=_host_and_port,
        metavar="HOST:PORT",
        help="gRPC endpoint of a Triton (default: 127.0.0.1:8001); may be given several times",
    )
    parser.add_argument("--host", default="127.0.0.1", type=_ipv4, help="IPv4 address to listen on")
    parser.add_argument(
        "--port", type=_port, default=8080, metavar="P", help="0 takes a free port (default: 8080)"
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
        "--max-characters", type=_positive, default=5_000, metavar="N", help="of a text"
    )
    parser.add_argument(
        "--max-body-bytes", type=_positive, default=1 << 20, metavar="N", help="of a request"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=300.0, metavar="S", help="of a request at Triton"
    )
    parser.add_argument(
        "--read-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="for the head of a request, and again for its body",
    )
    parser.add_argument(
        "--write-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="how long a client may take nothing of what it is sent",
    )
    parser.add_argument(
        "--exit-timeout",
        type=_not_negative,
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
        announce=_announce,
        exit_timeout_s=args.exit_timeout,
        read_timeout_s=args.read_timeout,
        trusted_proxies=tuple(args.trusted_proxy or ()),
    )
    http_server.ignore_repeated_signals()
    server.serve_until_stopped()
    return 0


def _announce(address: str) -> None:
    try:
        sys.stdout.write(f"ready http={address}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader wanted one line only, and we serve on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted HOST:PORT")
    return text


def _ipv4(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted an IPv4 address") from error


def _port(text: str) -> int:
    return _integer(text, 0, _MAX_PORT)


def _positive(text: str) -> int:
    return _integer(text, 1, sys.maxsize)


def _not_negative(text: str) -> int:
    return _integer(text, 0, sys.maxsize)


def _integer(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        wanted = f"{low} to {high}" if high < sys.maxsize else f"a whole number from {low}"
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {wanted}")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, wanted seconds above 0, at most {_MAX_TIMEOUT_S:g}"
        )
    return seconds
