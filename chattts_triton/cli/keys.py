"""`chattts-triton keys`: the API keys of a gateway."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from chattts_triton.errors import InvalidRequestError

_COLUMNS = ("name", "requests", "characters", "max_concurrent")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "keys",
        help="make, list and remove API keys of the gateway",
        description="The file of API keys that `gateway --api-keys` reads. It holds hashes only. "
        "A running gateway knows a change within a second or two, without a restart.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = _add_action(actions, "new", "make a key and print it, this once", run_new)
    new.add_argument("name", metavar="NAME", help="of who has the key; no secret")
    new.add_argument("--rate-limit-requests", metavar="RATE", help="such as 60/minute")
    new.add_argument("--rate-limit-characters", metavar="RATE", help="such as 20000/hour")
    new.add_argument(
        "--max-concurrent", type=int, metavar="N", help="requests that speak at the same time"
    )
    _add_action(actions, "list", "print the name and the limits of each key", run_list)
    remove = _add_action(actions, "remove", "remove a key", run_remove)
    remove.add_argument("name", metavar="NAME")


def run_new(args: argparse.Namespace) -> int:
    """Make a key."""
    # Imported here: only these commands need the extra `gateway`.
    from chattts_triton.gateway.protection.key_file import editing
    from chattts_triton.gateway.protection.keys import ApiKey, hash_of, new_secret
    from chattts_triton.gateway.protection.quotas import Quota

    secret = new_secret()
    quota = Quota(
        requests=args.rate_limit_requests,
        characters=args.rate_limit_characters,
        max_concurrent=args.max_concurrent,
    )
    key = ApiKey(args.name, hash_of(secret), quota)
    with editing(args.file) as keys:
        if key.name in keys:
            raise InvalidRequestError(f"NAME: {key.name} has a key already; remove it first")
        keys[key.name] = key
    sys.stdout.write(f"{secret}\n")
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Print every key, one a line."""
    from chattts_triton.gateway.protection.key_file import read_keys

    keys = read_keys(args.file).values()
    quotas = [(key.name, [getattr(key.quota, name) for name in _COLUMNS[1:]]) for key in keys]
    cells = [(name, *(str(limit or "-") for limit in limits)) for name, limits in quotas]
    rows = [_COLUMNS, *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    """Remove a key."""
    from chattts_triton.gateway.protection.key_file import editing

    with editing(args.file) as keys:
        if args.name not in keys:
            known = ", ".join(keys) or "none"
            raise InvalidRequestError.of("NAME", args.name, f"one of: {known}")
        del keys[args.name]
    return 0


def _add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "--file", type=Path, default=Path("api_keys.json"), metavar="FILE", help="of the keys"
    )
    parser.set_defaults(run=run)
    return parser
