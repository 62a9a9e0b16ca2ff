"""Entry point of `chattts-triton`: parses, runs one command, turns our errors into one line."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys

from chattts_triton import __version__
from chattts_triton.errors import ChatTTSError

COMMANDS = (
    "fetch",
    "standin",
    "export",
    "compare-precision",
    "serve",
    "say",
    "normalize",
    "voices",
    "bench",
    "gateway",
    "keys",
    "up",
    "demo",
)
_EXTRAS = {
    "fetch": "[export]",
    "standin": "[export]",
    "export": "[export]",
    "compare-precision": "[export]",
    "serve": "[serve]",
    "voices": "[voices]",
    "gateway": "[gateway]",
    "keys": "[gateway]",
    "bench": "[gateway]",
    "up": "[export,serve,gateway]",
    "demo": "[export,serve]",
}


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; each command module adds its own part and sets `run`."""
    parser = argparse.ArgumentParser(prog="chattts-triton", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"chattts_triton.cli.{name.replace('-', '_')}")
        module.add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 on success, 1 on a failure, 2 on wrong use (as argparse has it)."""
    # Our own log, and of the libraries only errors: one cause should make one line.
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("chattts_triton").setLevel(logging.INFO)
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except ChatTTSError as error:
        return _fail(args.command, " ".join(str(error).split()))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __package__.partition(".")[0]:
            raise  # a fault of ours, which no installation mends
        extra = _EXTRAS.get(args.command, "")
        return _fail(
            args.command, f"{error.name} is not installed; pip install 'chattts-triton{extra}'"
        )
    except KeyboardInterrupt:
        return 130


def _fail(command: str, message: str) -> int:
    sys.stderr.write(f"chattts-triton {command}: {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
