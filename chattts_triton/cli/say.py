"""`chattts-triton say`: one text to a running server, its audio into a WAV file."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chattts_triton.constants import MAX_SPEED, MIN_SPEED
from chattts_triton.errors import ChatTTSError, InvalidRequestError

if TYPE_CHECKING:
    from types import ModuleType

    from chattts_client import Audio, ChatTTSClient, ChatTTSClientError

STANDARD_STREAM = "-"
CUT_WARNING = (
    "warning: the audio was cut at the limit of steps; raise --max-new-tokens or shorten the text"
)
WARNING_TEXTS = {
    "refine_refused": "the refinement strayed from the text, which was spoken as it was sent",
}
OPTION_NAMES = (
    "seed",
    "voice",
    "speed",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "max_new_tokens",
    "refine",
    "lang",
    "trim",
)


@dataclass(frozen=True)
class Report:
    """What `--json` prints."""

    file: str
    seed: int
    finish_reason: str
    duration_s: float
    elapsed_s: float
    rtf: float
    sample_rate: int
    refined_text: str
    warnings: tuple[str, ...]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `say` to the command line."""
    parser = subparsers.add_parser("say", help="speak a text into a WAV file", description=__doc__)
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="the WAV file; - is standard output"
    )
    parser.add_argument("--url", type=_host_and_port, default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--timeout-s", type=_seconds, default=300.0, metavar="S")
    parser.add_argument(
        "--json", action="store_true", help="report as one JSON object instead of a sentence"
    )
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Call the server, write the file, report.

    Raises:
        ChatTTSError: The text cannot be read, the call failed, or the file cannot be written.
    """
    text = _read_text(args.text)
    if args.out != STANDARD_STREAM:
        check_out(Path(args.out))
    start_s = time.perf_counter()
    audio = _synthesize(args, text)
    elapsed_s = time.perf_counter() - start_s
    _write(args.out, audio)
    report = Report(
        file=args.out,
        seed=audio.seed,
        finish_reason=audio.finish_reason,
        duration_s=round(audio.duration_s, 4),
        elapsed_s=round(elapsed_s, 4),
        rtf=round(elapsed_s / audio.duration_s, 4),
        sample_rate=audio.sample_rate,
        refined_text=audio.refined_text,
        warnings=audio.warnings,
    )
    # Where standard output carries the sound, the report goes beside it.
    stream = sys.stderr if args.out == STANDARD_STREAM else sys.stdout
    if args.json:
        stream.write(json.dumps(asdict(report)) + "\n")
        return 0
    stream.write(_sentence(report) + "\n")
    if report.finish_reason == "length":
        sys.stderr.write(CUT_WARNING + "\n")
    for code in report.warnings:
        sys.stderr.write(f"warning: {WARNING_TEXTS.get(code, code)}\n")
    return 0


def _read_text(text: str) -> str:
    if text != STANDARD_STREAM:
        return text
    data = sys.stdin.buffer.read()
    try:
        # The line break that echo adds is no part of what is to be said.
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidRequestError.of(
            "standard input", data[error.start : error.start + 8], f"UTF-8 at byte {error.start}"
        ) from error


def check_out(out: Path) -> None:
    """Refuse before the work a file that could not be written after it.

    Raises:
        ChatTTSError: It is a directory, has none, or may not be written.
    """
    if out.is_dir():
        raise ChatTTSError(f"cannot write {out}: it is a directory")
    if not out.parent.is_dir():
        raise ChatTTSError(f"cannot write {out}: no directory {out.parent}")
    with write_errors(out):
        if out.is_file():
            out.open("ab").close()
        elif not out.exists():  # what is there and no file, such as a pipe, is not to be opened
            tempfile.TemporaryFile(dir=out.parent).close()


@contextmanager
def write_errors(out: str | Path) -> Iterator[None]:
    """Turn a failure to write `out` into one line."""
    try:
        yield
    except OSError as error:
        raise ChatTTSError(f"cannot write {out}: {error.strerror or error}") from error


def import_client() -> ModuleType:
    """The package `chattts_client`, which is installed by itself.

    Raises:
        ChatTTSError: It is not installed.
    """
    try:
        import chattts_client
    except ImportError as error:
        raise ChatTTSError(
            f"the client is not installed ({error}): run `pip install ./client` in the repository"
        ) from error
    return chattts_client


@contextmanager
def connected_client(url: str, timeout_s: float) -> Iterator[ChatTTSClient]:
    """A client of the server at `url`; what its calls raise within the block are our errors.

    Raises:
        ChatTTSError: The client is not installed, or a call failed.
    """
    package = import_client()
    try:
        with package.ChatTTSClient(url, timeout_s=timeout_s) as client:
            yield client
    except package.ChatTTSClientError as error:
        raise _server_error(error) from error


def _synthesize(args: argparse.Namespace, text: str) -> Audio:
    options: dict[str, Any] = {name: getattr(args, name) for name in OPTION_NAMES}
    with connected_client(args.url, args.timeout_s) as client:
        return client.synthesize(text, **options)


def _server_error(error: ChatTTSClientError) -> ChatTTSError:
    """The client's error as ours of the same `error_type`, or a plain one where we have none."""
    ours = {kind.error_type: kind for kind in ChatTTSError.__subclasses__()}
    return ours.get(error.error_type, ChatTTSError)(str(error))


def _write(out: str, audio: Audio) -> None:
    with write_errors(out):
        if out == STANDARD_STREAM:
            sys.stdout.buffer.write(audio.wav_bytes())
            sys.stdout.buffer.flush()
        else:
            audio.write(out)


def _sentence(report: Report) -> str:
    return (
        f"{report.file}: {report.duration_s:.2f} s of audio in {report.elapsed_s:.2f} s "
        f"(RTF {report.rtf:.2f}), seed {report.seed}, finish_reason {report.finish_reason}"
    )


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted HOST:PORT")
    return value


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted seconds above 0, at most 86400")
    return seconds
