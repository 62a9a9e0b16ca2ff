"""`chattts-triton say`: one text to a running server, its audio into a WAV file or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chattts_triton.cli.live_output import STANDARD_STREAM, LiveOutput
from chattts_triton.cli.say_arguments import add_arguments
from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.errors import ChatTTSError, InvalidRequestError

if TYPE_CHECKING:
    from types import ModuleType

    from chattts_client import Audio, AudioChunk, ChatTTSClient, ChatTTSClientError

CUT_WARNING = (
    "warning: the audio was cut at the limit of steps; raise --max-new-tokens or shorten the text"
)
WARNING_TEXTS = {
    "refine_refused": "the refinement strayed from the text, which was spoken as it was sent",
    "unknown_words": "the checkpoint does not know every word of the text; one of letters is "
    "spelled, any other is not spoken as it should be (`chattts-triton normalize` lists them)",
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


@dataclass(frozen=True)
class StreamReport(Report):
    """What `--json` prints of a stream."""

    ttfa_s: float
    num_chunks: int
    mode: str


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `say` to the command line."""
    parser = subparsers.add_parser("say", help="speak a text into a WAV file", description=__doc__)
    add_arguments(parser)
    parser.set_defaults(run=run, refuse_use=parser.error)


def run(args: argparse.Namespace) -> int:
    """Call the server, write the file, report.

    Raises:
        ChatTTSError: The text cannot be read, the call failed, or the file cannot be written.
    """
    if args.mode is not None and not args.stream:
        args.refuse_use("argument --mode: only with --stream")
    text = _read_text(args.text)
    if args.out != STANDARD_STREAM:
        check_out(Path(args.out))
    report = _say_stream(args, text) if args.stream else _say_whole(args, text)
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


def _say_whole(args: argparse.Namespace, text: str) -> Report:
    start_s = time.perf_counter()
    with connected_client(args.url, args.timeout_s) as client:
        audio = client.synthesize(text, **_options(args))
    elapsed_s = time.perf_counter() - start_s
    _write(args.out, audio)
    return Report(**_report_fields(args.out, audio, audio.duration_s, elapsed_s))


def _say_stream(args: argparse.Namespace, text: str) -> StreamReport:
    start_s = time.perf_counter()
    ttfa_s = 0.0
    output = LiveOutput(args.out)
    try:
        with (
            write_errors(args.out),
            output,
            connected_client(args.url, args.timeout_s) as client,
            closing(client.stream(text, mode=args.mode, **_options(args))) as chunks,
        ):
            for chunk in chunks:
                if chunk.index == 0:
                    ttfa_s = time.perf_counter() - start_s
                    if not args.json:
                        sys.stderr.write(f"first audio after {ttfa_s:.3f} s\n")
                output.write(chunk.pcm16_bytes())
    except ChatTTSError as error:
        if not (output.is_wav and output.num_samples):
            raise
        cut_s = output.num_samples / SAMPLE_RATE_HZ
        raise type(error)(f"{error}; {args.out} is cut after {cut_s:.2f} s") from error
    duration_s = output.num_samples / SAMPLE_RATE_HZ
    return StreamReport(
        **_report_fields(args.out, chunk, duration_s, time.perf_counter() - start_s),
        ttfa_s=round(ttfa_s, 4),
        num_chunks=chunk.index + 1,
        mode=chunk.mode,
    )


def _report_fields(
    out: str, audio: Audio | AudioChunk, duration_s: float, elapsed_s: float
) -> dict[str, Any]:
    """What both reports have, from the audio or the last chunk of it."""
    return {
        "file": out,
        "seed": audio.seed,
        "finish_reason": audio.finish_reason,
        "duration_s": round(duration_s, 4),
        "elapsed_s": round(elapsed_s, 4),
        "rtf": round(elapsed_s / duration_s, 4),
        "sample_rate": audio.sample_rate,
        "refined_text": audio.refined_text,
        "warnings": audio.warnings,
    }


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in (*OPTION_NAMES, "queue_priority")}


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
    stream = ""
    if isinstance(report, StreamReport):
        stream = (
            f", first audio after {report.ttfa_s:.3f} s, {report.num_chunks} chunks, "
            f"mode {report.mode}"
        )
    return (
        f"{report.file}: {report.duration_s:.2f} s of audio in {report.elapsed_s:.2f} s "
        f"(RTF {report.rtf:.2f}){stream}, seed {report.seed}, "
        f"finish_reason {report.finish_reason}"
    )
