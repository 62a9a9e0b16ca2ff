"""The command line of `chattts-triton bench`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from urllib.parse import urlsplit

from chattts_triton.cli.say_arguments import MODES

DEFAULT_URL = "127.0.0.1:8001"
DEFAULT_REQUESTS = 32
GATEWAY_SCHEMES = ("http", "https")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `bench` understands to its parser."""
    parser.add_argument(
        "--url",
        type=_address,
        default=DEFAULT_URL,
        metavar="HOST:PORT",
        help="the server's gRPC endpoint; one that begins with http:// is a gateway",
    )
    parser.add_argument("--model", default="chattts", metavar="NAME", help="the model that speaks")
    _add_load(parser)
    _add_requests(parser)
    parser.add_argument("--timeout-s", type=_above_zero, default=300.0, metavar="S")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything, each request too, as JSON"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="requests at a time (1); with --rate the most at a time (no limit)",
    )
    load.add_argument(
        "--rate",
        type=_above_zero,
        metavar="R",
        help="open loop: requests a second on average, by Poisson arrivals",
    )
    load.add_argument("--requests", type=int, default=DEFAULT_REQUESTS, metavar="M")
    load.add_argument(
        "--warmup",
        type=int,
        metavar="K",
        help="requests before them that are dropped (as many as --concurrency; 4 with --rate)",
    )
    load.add_argument(
        "--find-capacity",
        action="store_true",
        help="the most streams at a time without an under-run; --concurrency is tried first",
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    requests = parser.add_argument_group("requests")
    requests.add_argument("--stream", action="store_true", help="ask for streams, not for calls")
    requests.add_argument("--mode", choices=MODES, help="of streams; the server's choice without")
    requests.add_argument(
        "--texts", type=Path, metavar="FILE", help="one text a line, in place of those shipped"
    )
    requests.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="of the first request and of the arrivals; each request has the next one",
    )
    requests.add_argument("--voice", metavar="V", help="as of `say`; drawn from the seed without")
    requests.add_argument("--max-new-tokens", type=int, metavar="N", help="limit of 21 ms steps")


def refuse_wrong_use(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with status 2 where options contradict each other."""
    if args.mode is not None and not (args.stream or args.find_capacity):
        parser.error("argument --mode: only with --stream or --find-capacity")
    if args.find_capacity and args.rate is not None:
        parser.error("argument --rate: not with --find-capacity, whose load is a closed loop")


def is_gateway(url: str) -> bool:
    """Whether a URL is a gateway's and not Triton's."""
    return "://" in url


def _address(value: str) -> str:
    """HOST:PORT, or the URL of a gateway."""
    try:
        parts = urlsplit(value if is_gateway(value) else f"//{value}")
        is_whole = bool(parts.hostname) and (is_gateway(value) or bool(parts.port))
    except ValueError:
        is_whole = False
    is_known = is_whole and parts.scheme in ("", *GATEWAY_SCHEMES)
    if not is_known or parts.path.strip("/") or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted HOST:PORT or http://HOST:PORT")
    return value.rstrip("/")


def _above_zero(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted a number above 0")
    return number
