"""The recogniser on every core: one process each, which keeps what it needs from row to row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
from voice_takes import Take

from chattts_triton.constants import SAMPLE_RATE_HZ
from training.domain import WORDS
from training.recognizer import Recognizer

_Job = tuple[str, bool, npt.NDArray[np.float32]]


class Ear:
    """Processes that listen; use it as a context."""

    def __init__(self) -> None:
        # Unlike a `multiprocessing.Pool` it fails, and does not wait for ever, when one is killed.
        self._pool = ProcessPoolExecutor(
            len(os.sched_getaffinity(0)), mp_context=get_context("spawn")
        )

    def listen(self, takes: Sequence[Take], *, only_letters: bool = False) -> None:
        """Fill in what was heard of each; with `only_letters` nothing but names of letters."""
        jobs = [(take.voice, only_letters, take.audio) for take in takes]
        for take, heard in zip(takes, self._pool.map(_hear, jobs), strict=True):
            take.heard = heard

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def _hear(job: _Job) -> list[str]:
    voice, only_letters, audio = job
    return _recognizer(voice, only_letters).words(audio, SAMPLE_RATE_HZ)


@cache
def _recognizer(voice: str, only_letters: bool) -> Recognizer:
    return Recognizer([] if only_letters else WORDS, voice=voice)
