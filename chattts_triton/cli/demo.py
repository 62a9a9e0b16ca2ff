"""`chattts-triton demo`: from nothing to a wav that came through tritonserver."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chattts_triton.cli.say import check_out, connected_client, import_client, write_errors

if TYPE_CHECKING:
    from chattts_triton.export.choose import CheckpointChoice

TEXT = "你好，世界。"
# Of words that the demonstration voice knows, once figures are read.
DEMONSTRATION_TEXT = (
    "hello, this is the demonstration voice. today is monday, november thirtieth, "
    "and the red car costs $21."
)
SEED = 42
_PRECISION = "int8"
_CALL_TIMEOUT_S = 300.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "demo",
        help="choose a checkpoint, export it, serve it, and write one sentence to demo.wav",
        description="What `make demo` runs. The export is kept and used again.",
    )
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--out", type=Path, default=Path("demo.wav"), metavar="FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run every stage once, in order.

    Raises:
        ChatTTSError: A stage failed; what can be known before the work is refused before it.
    """
    check_out(args.out)
    import_client()
    # Imported here: together these take seconds, and only this command needs them all.
    from chattts_triton.server.background_server import serve_in_background

    choice = export_demo(args.repository)
    text = DEMONSTRATION_TEXT if choice.kind == "demo" else TEXT
    with contextlib.ExitStack() as stack:
        with progress("starting tritonserver"):
            server = stack.enter_context(serve_in_background(args.repository))
        client = stack.enter_context(connected_client(server.grpc, _CALL_TIMEOUT_S))
        began_s = time.monotonic()
        with progress("one gRPC infer call"):
            audio = client.synthesize(text, seed=SEED)
        elapsed_s = time.monotonic() - began_s
    with write_errors(args.out):
        audio.write(args.out)
    sys.stdout.write(
        f"{args.out}: {audio.duration_s:.2f} s of audio in {elapsed_s:.2f} s, "
        f"RTF {elapsed_s / audio.duration_s:.2f}, seed {audio.seed}, "
        f"finish reason {audio.finish_reason}\n"
    )
    return 0


def export_demo(repository: Path) -> CheckpointChoice:
    """Choose the checkpoint and export it, unless that is there already.

    Raises:
        ChatTTSError: There is none, or it cannot be exported.
    """
    from chattts_triton.export.choose import choose_checkpoint
    from chattts_triton.export.repository import export, is_export_of

    with progress("choosing the checkpoint"):
        choice = choose_checkpoint(environment=os.environ)
    sys.stdout.write(f"checkpoint: {choice.note}\n")
    with progress("checking the export"):
        is_current = is_export_of(repository, choice.path, _PRECISION)
    if not is_current:
        export(choice.path, repository, _PRECISION)
    return choice


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on standard error that something goes on, and for how long, until it is over."""
    from tqdm import tqdm

    is_over = threading.Event()
    # The bar stays empty: it fills the line, which hides what a bar within this one left there.
    with tqdm(total=1, desc=what, bar_format="{desc}: {elapsed} {bar}", file=sys.stderr) as bar:

        def tick() -> None:
            while not is_over.wait(0.5):
                bar.refresh()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
