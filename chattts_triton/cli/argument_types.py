"""What `argparse` makes of the text of an option, or refuses: what came, what is wanted."""

from __future__ import annotations

import ipaddress
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable

_MAX_PORT = 65_535
_MAX_SECONDS = 86_400


def integer(low: int, high: int = sys.maxsize) -> Callable[[str], int]:
    """A whole number of a range."""
    wanted = f"{low} to {high}" if high < sys.maxsize else f"a whole number from {low}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ArgumentTypeError(f"got {text!r}, wanted {wanted}")
        return value

    return read


positive = integer(1)
not_negative = integer(0)
port = integer(0, _MAX_PORT)  # 0 takes a free one


def seconds(text: str) -> float:
    """A time above 0, of a day at most."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MAX_SECONDS:
        raise ArgumentTypeError(f"got {text!r}, wanted seconds above 0, at most {_MAX_SECONDS}")
    return value


def ipv4(text: str) -> str:
    """An address to listen on."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise ArgumentTypeError(f"got {text!r}, wanted an IPv4 address") from error


def host_and_port(text: str) -> str:
    """The address of a server, HOST:PORT."""
    host, _, number = text.rpartition(":")
    if not host or "/" in host or not number.isdecimal() or not 0 < int(number) <= _MAX_PORT:
        raise ArgumentTypeError(f"got {text!r}, wanted HOST:PORT")
    return text
