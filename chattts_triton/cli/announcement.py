"""Lines on standard output that tell a program, or a person, where a server answers."""

from __future__ import annotations

import os
import sys


def announce(line: str) -> None:
    """Write one line at once; a reader that wanted no more than the first costs nothing."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
