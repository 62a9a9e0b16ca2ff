"""Sentences that were spoken and heard, and what many come to: rates, intervals, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import SAMPLE_RATE_HZ
from training.recognizer import said_words, word_errors

SHORT_WORDS = 12
# Of the teacher's duration: what is shorter was cut off, what is longer runs on.
CUT, RUNS_ON = 0.6, 1.6
NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(eq=False)
class Take:
    """One text as one speaker said it.

    Attributes:
        text: As the tokenizer gets it.
        voice: Whose voice it is, or is meant to be.
        audio: (S,) float32 at 24 kHz.
        teacher_s: How long the teacher takes for it at the usual speed.
        finish_reason: `stop` or `length`.
        elapsed_s: How long it took to make; 0.0 where that is not measured.
        heard: The words that the recogniser heard, once it has listened.
    """

    text: str
    voice: str
    audio: npt.NDArray[np.float32]
    teacher_s: float
    finish_reason: str = "stop"
    elapsed_s: float = 0.0
    heard: list[str] = field(default_factory=list)

    @property
    def said(self) -> list[str]:
        """The words to be heard."""
        return said_words(self.text)

    @property
    def errors(self) -> int:
        """Words heard wrong."""
        return word_errors(self.said, self.heard)

    @property
    def duration_s(self) -> float:
        """How long it plays."""
        return len(self.audio) / SAMPLE_RATE_HZ

    @property
    def share_of_teacher(self) -> float:
        """Its duration in shares of the teacher's."""
        return self.duration_s / self.teacher_s


def summary(takes: Sequence[Take]) -> dict[str, Any]:
    """What a row of the report says; all takes have been heard."""
    shares = [take.share_of_teacher for take in takes]
    reasons = [take.finish_reason for take in takes]
    row: dict[str, Any] = {
        "sentences": len(takes),
        **_rate(takes),
        "interval": interval([take.errors for take in takes], [len(take.said) for take in takes]),
        "short": _rate(list(filter(is_short, takes))),
        "long": _rate(list(filter(is_long, takes))),
        "duration_ratio": float(np.mean(shares)),
        "not_stop": len(takes) - reasons.count("stop"),
        "cut": sum(share < CUT for share in shares),
        "running_on": sum(share > RUNS_ON for share in shares),
    }
    if elapsed_s := sum(take.elapsed_s for take in takes):
        row["rtf"] = elapsed_s / sum(take.duration_s for take in takes)
    return row


def difference(takes: Sequence[Take], others: Sequence[Take]) -> dict[str, Any]:
    """How far the rate of one row is above another's over the same texts, with its interval."""
    pairs = list(zip(takes, others, strict=True))
    found = {}
    for kind, belongs in {"all": lambda _: True, "short": is_short, "long": is_long}.items():
        extra = [take.errors - other.errors for take, other in pairs if belongs(take)]
        words = [len(take.said) for take in takes if belongs(take)]
        found[kind] = {
            "points": sum(extra) / max(1, sum(words)),
            "interval": interval(extra, words),
        }
    return found


def is_short(take: Take) -> bool:
    """Whether its text has at most 12 words."""
    return len(take.said) <= SHORT_WORDS


def is_long(take: Take) -> bool:
    """Whether its text has more than 12 words."""
    return not is_short(take)


def interval(errors: Sequence[int], words: Sequence[int]) -> list[float]:
    """The 95 % confidence interval of errors per word, by drawing sentences anew."""
    if not errors:
        return [0.0, 0.0]
    drawn = np.random.default_rng(0).integers(len(errors), size=(NUM_RESAMPLES, len(errors)))
    rates = np.array(errors)[drawn].sum(axis=1) / np.array(words)[drawn].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    return [float(bound) for bound in np.quantile(rates, [tail, 1 - tail])]


def _rate(takes: Sequence[Take]) -> dict[str, Any]:
    errors, words = sum(take.errors for take in takes), sum(len(take.said) for take in takes)
    return {"words": words, "errors": errors, "rate": errors / max(1, words)}
