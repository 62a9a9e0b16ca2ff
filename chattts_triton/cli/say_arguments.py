"""The command line of `chattts-triton say`."""

from __future__ import annotations

import argparse

from chattts_triton.cli.argument_types import host_and_port, seconds
from chattts_triton.constants import MAX_SPEED, MIN_SPEED

MODES = ("quality", "low_latency", "auto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `say` understands to its parser."""
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="the WAV file; - is standard output"
    )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="write the audio while it is made: a WAV file where FILE ends in .wav, else (also to "
        "a pipe or standard output) raw samples, 16 bit little-endian, 24 kHz, mono",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="of a stream: the samples of a whole answer, an earlier first chunk, or as the "
        "server has time (default)",
    )
    parser.add_argument("--url", type=host_and_port, default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--timeout-s", type=seconds, default=300.0, metavar="S")
    parser.add_argument(
        "--json", action="store_true", help="report as one JSON object instead of a sentence"
    )
    parser.add_argument(
        "--queue-priority", type=int, metavar="N", help="0 first, 1 unless set, 2 last"
    )
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    options = parser.add_argument_group("options of the voice and of the drawing of codes")
    options.add_argument("--seed", type=int, metavar="N", help="default: a fresh one, reported")
    options.add_argument(
        "--voice",
        metavar="V",
        help="a name of the server's voices, seed:N, or a ChatTTS speaker string",
    )
    options.add_argument("--speed", type=int, metavar="N", help=f"{MIN_SPEED} to {MAX_SPEED}")
    options.add_argument("--temperature", type=float, metavar="X")
    options.add_argument("--top-p", type=float, metavar="X")
    options.add_argument("--top-k", type=int, metavar="N")
    options.add_argument("--repetition-penalty", type=float, metavar="X")
    options.add_argument("--max-new-tokens", type=int, metavar="N", help="limit of 21 ms steps")
    options.add_argument("--refine", action=argparse.BooleanOptionalAction)
    options.add_argument("--lang", metavar="L", help="zh or en; default: told from the text")
    options.add_argument(
        "--trim",
        action=argparse.BooleanOptionalAction,
        help="cut silence at the beginning and the end down to 50 ms",
    )
