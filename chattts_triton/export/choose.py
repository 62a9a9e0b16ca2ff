"""Chooses the checkpoint that `make demo` runs on; the one place that knows the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import check_layout
from chattts_triton.export.fetch import REPO_ID, cached_checkpoint, fetch, unreachable_reason
from chattts_triton.export.standin import write_standin

GIVEN = "CHATTTS_CHECKPOINT"


@dataclass(frozen=True)
class CheckpointChoice:
    """The checkpoint that was chosen, where it came from, and what to tell the user."""

    path: Path
    kind: Literal["given", "cache", "download", "standin"]
    note: str


def _write_full_standin(path: Path) -> None:
    write_standin("full", path, seed=0)


def choose_checkpoint(
    directory: Path,
    reach_timeout_s: float = 10.0,
    *,
    environment: Mapping[str, str],
    expected_sha256: Mapping[str, str] | None = None,
    write: Callable[[Path], None] = _write_full_standin,
) -> CheckpointChoice:
    """The first of: what CHATTTS_CHECKPOINT names, the hub's cache, a download, the stand-in.

    The stand-in is for a hub that cannot be reached. A hub that answers and then sends a wrong or
    incomplete file is an error: whoever expects speech should not get noise without noticing.

    Args:
        directory: Where the stand-in is kept, as `standin-full`; reused once it is complete.
        reach_timeout_s: How long the hub may take to answer a small request. The download that
            follows has no such limit.
        environment: The process's environment, of which CHATTTS_CHECKPOINT counts here.
        expected_sha256: As for `fetch`.
        write: Writes the stand-in to a directory, all of it or nothing.

    Raises:
        ModelLoadError: CHATTTS_CHECKPOINT is not a ChatTTS checkpoint, the download failed, or the
            stand-in cannot be written.
    """
    given = environment.get(GIVEN)
    if given:
        return _given(Path(given))
    cached = cached_checkpoint(expected_sha256)
    if cached is not None:
        return CheckpointChoice(
            cached, "cache", f"Using the ChatTTS weights in the Hugging Face cache, {cached}."
        )
    reason = unreachable_reason(reach_timeout_s)
    if reason is not None:
        return _standin(directory / "standin-full", reason, write)
    path = fetch(expected_sha256=expected_sha256)
    return CheckpointChoice(
        path, "download", f"Downloaded the ChatTTS weights (CC BY-NC 4.0) of {REPO_ID} to {path}."
    )


def _given(path: Path) -> CheckpointChoice:
    try:
        check_layout(path)
    except ModelLoadError as error:
        raise ModelLoadError(f"{GIVEN}: {error}") from error
    return CheckpointChoice(path, "given", f"Using the checkpoint that {GIVEN} names, {path}.")


def _standin(path: Path, reason: str, write: Callable[[Path], None]) -> CheckpointChoice:
    if not _is_complete(path):
        write(path)
    return CheckpointChoice(
        path,
        "standin",
        f"The Hugging Face hub cannot be reached ({reason}), so random weights stand in for the "
        "real ones: they make NOISE, NOT SPEECH. For the real voice run `chattts-triton fetch` "
        "where the hub can be reached (HF_ENDPOINT names a mirror), or set CHATTTS_CHECKPOINT to "
        "a directory that holds asset/... .",
    )


def _is_complete(path: Path) -> bool:
    try:
        check_layout(path)
    except ModelLoadError:
        return False
    return True
