"""Chooses the checkpoint that `make demo` runs on; the one place that knows the order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import TOKENIZER, check_layout
from chattts_triton.export.fetch import (
    HOW_TO_GO_ON,
    REPO_ID,
    cached_checkpoint,
    fetch,
    unreachable_reason,
)
from chattts_triton.text.prompt import load_tokenizer
from chattts_triton.text.vocabulary import ClosedVocabulary, closed_vocabulary

GIVEN = "CHATTTS_CHECKPOINT"


@dataclass(frozen=True)
class CheckpointChoice:
    """The checkpoint that was chosen, where it came from, and what to tell the user."""

    path: Path
    kind: Literal["given", "cache", "download", "demo"]
    note: str


def demo_voice_directory() -> Path:
    """Where the demonstration voice lies: within an installed package, or in the source tree."""
    packaged = Path(__file__).parents[1] / "demo_voice"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "assets" / "demo_voice"


def choose_checkpoint(
    reach_timeout_s: float = 10.0,
    *,
    environment: Mapping[str, str],
    expected_sha256: Mapping[str, str] | None = None,
    demo_voice: Path | None = None,
) -> CheckpointChoice:
    """The first of: what CHATTTS_CHECKPOINT names, the hub's cache, a download, the demo voice.

    The demonstration voice is for a hub that cannot be reached. A hub that answers and then sends
    a wrong or incomplete file is an error: whoever expects ChatTTS's own voice should not get
    another one without noticing.

    Args:
        reach_timeout_s: How long the hub may take to answer a small request. The download that
            follows has no such limit.
        environment: The process's environment, of which CHATTTS_CHECKPOINT counts here.
        expected_sha256: As for `fetch`.
        demo_voice: The checkpoint of the demonstration voice; by default the one that came along.

    Raises:
        ModelLoadError: CHATTTS_CHECKPOINT is not a ChatTTS checkpoint, the download failed, or the
            hub cannot be reached and the demonstration voice is missing or damaged.
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
        return _demo(demo_voice or demo_voice_directory(), reason)
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


def _demo(path: Path, reason: str) -> CheckpointChoice:
    try:
        vocabulary = _vocabulary(path)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"the Hugging Face hub cannot be reached ({reason}), and the demonstration voice "
            f"cannot be used: {error}; {HOW_TO_GO_ON}"
        ) from error
    return CheckpointChoice(
        path,
        "demo",
        f"The Hugging Face hub cannot be reached ({reason}), so you hear a DEMONSTRATION VOICE of "
        f"{vocabulary.num_words} words and {vocabulary.num_characters} Chinese characters, not "
        "that of ChatTTS. It speaks English and Mandarin of these only, spells every other word "
        "and leaves every other character out. For the real voice run `chattts-triton fetch` where "
        "the hub can be reached (HF_ENDPOINT names a mirror), or set CHATTTS_CHECKPOINT to a "
        "directory that holds asset/... .",
    )


def _vocabulary(path: Path) -> ClosedVocabulary:
    check_layout(path)
    vocabulary = closed_vocabulary(load_tokenizer(path / TOKENIZER))
    if vocabulary is None:
        raise ModelLoadError(f"{path / TOKENIZER}: no words in it, wanted a closed vocabulary")
    return vocabulary
