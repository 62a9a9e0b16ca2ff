"""One sequence in the engine: what was asked, what has been generated, and how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import NUM_VQ
from chattts_triton.errors import ChatTTSError
from chattts_triton.sampling_params import SamplingParams

LOGGER = logging.getLogger(__name__)
DEFAULT_PRIORITY = 1


class Stage(Enum):
    """Which of the GPT's two vocabularies a sequence is continued in."""

    CODE = "code"  # num_vq audio codes a step, spoken with their hidden states
    TEXT = "text"  # one text id a step: the refinement of a text


class FinishReason(Enum):
    """Why a sequence left the batch."""

    STOP = "stop"  # it drew the end code
    LENGTH = "length"  # it reached its cap on steps: the audio is cut
    ABORT = "abort"  # cancelled, timed out or failed; `Sequence.error` says why


@dataclass(frozen=True)
class Deadline:
    """When a request's own timeout runs out, all of its sequences' time counted together."""

    timeout_s: float
    at_s: float  # time.monotonic()

    @classmethod
    def after(cls, timeout_s: float, arrival_s: float | None = None) -> Deadline:
        """That of a request that came at `arrival_s`, by `time.monotonic()`, or has just come."""
        since_s = time.monotonic() if arrival_s is None else arrival_s
        return cls(timeout_s, since_s + timeout_s)


class _Reader(NamedTuple):
    num_steps: int
    callback: Callable[[], None]


class Sequence:
    """A prompt on its way through the engine.

    Only the engine's thread changes it once it has been added. Any other may read what there is
    so far, and have itself called by `notify_at`.
    """

    def __init__(  # noqa: PLR0913 - all that a request says about a sequence
        self,
        request_id: str,
        text_ids: npt.NDArray[np.int32],
        speaker_embedding: npt.NDArray[np.float32],
        params: SamplingParams,
        on_finished: Callable[[Sequence], None],
        *,
        stage: Stage = Stage.CODE,
        prompt_codes: npt.NDArray[np.int32] | None = None,
        deadline: Deadline | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> None:
        """Prepare a sequence.

        Args:
            request_id: The caller's name for it, for logs and `abort`.
            text_ids: (T,) int32, the prompt's text.
            speaker_embedding: (hidden,) float32, put in place of the prompt's speaker slot.
            params: How its tokens are drawn.
            on_finished: Called once when it has ended, on the engine's thread; must not block.
            stage: What is generated.
            prompt_codes: (P, num_vq) int32, codes of a voice sample that follow the text.
            deadline: When it is given up.
            priority: How soon it gets a slot, the lowest number first: 0, 1 or 2.
        """
        self.request_id = request_id
        self.stage = stage
        self.text_ids = text_ids
        self.prompt_codes = prompt_codes
        self.speaker_embedding = speaker_embedding
        self.params = params
        self.deadline = deadline
        self.priority = priority
        self.place = (0, 0)  # in the waiting queue; the scheduler's own
        self.arrival_s = time.monotonic()
        self.first_step_s: float | None = None
        self.num_prefilled = 0  # positions of the prompt that the KV slot holds; the engine's own
        self.finish_reason: FinishReason | None = None
        self.error: ChatTTSError | None = None
        self._on_finished = on_finished
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._hiddens: list[npt.NDArray[np.float32]] = []
        self._owner_knows = False  # on_finished has been called
        self._reader: _Reader | None = None
        self._reader_lock = threading.Lock()

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt: text ids, and codes of a voice sample."""
        return len(self.text_ids) + (0 if self.prompt_codes is None else len(self.prompt_codes))

    @property
    def num_steps(self) -> int:
        """Steps generated so far."""
        return len(self._tokens)

    @property
    def is_prefilled(self) -> bool:
        """Whether the KV slot holds the whole prompt."""
        return self.num_prefilled == self.num_prompt_tokens

    @property
    def num_cached(self) -> int:
        """Positions in the KV slot that the next pass builds on."""
        # The newest tokens are only embedded, and so cached, by the step that follows them.
        return self.num_prefilled + max(self.num_steps - 1, 0)

    @property
    def last_tokens(self) -> npt.NDArray[np.int64]:
        """(num_vq,) codes or (1,) text id, int64, that the next step is fed."""
        return self._tokens[-1]

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """(T, num_vq) codes or (T, 1) text ids, int64; at least one step."""
        return np.stack(self._tokens)

    @property
    def hiddens(self) -> npt.NDArray[np.float32]:
        """(T, hidden) float32, one for each of `tokens`."""
        return np.stack(self._hiddens)

    def tokens_between(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """`tokens[start:stop]` of the steps there are so far, perhaps none."""
        rows = self._tokens[start:stop]
        width = NUM_VQ if self.stage is Stage.CODE else 1
        return np.stack(rows) if rows else np.empty((0, width), dtype=np.int64)

    def hiddens_between(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """`hiddens[start:stop]` of the steps there are so far, perhaps none."""
        rows = self._hiddens[start:stop]
        width = len(self.speaker_embedding)
        return np.stack(rows) if rows else np.empty((0, width), dtype=np.float32)

    def drop_hiddens(self) -> None:
        """Let go of the hidden states, once it has ended and they have been read."""
        self._hiddens = []

    def notify_at(self, num_steps: int, callback: Callable[[], None]) -> None:
        """Have a reader called as soon as so many steps exist, or the sequence has ended.

        It is called once: by this thread if that is so already, else by the engine's, and then it
        must not block. At the end it is called after `on_finished`. There is one reader; a new
        one takes the place of one that has not been called yet.
        """
        with self._reader_lock:
            self._reader = _Reader(num_steps, callback)
        self._call_reader()

    def append(self, tokens: npt.NDArray[np.int64], hidden: npt.NDArray[np.float32]) -> None:
        """Take one step's tokens and the hidden state (hidden,) they were drawn from."""
        self._hiddens.append(hidden)
        self._tokens.append(tokens)  # last, since these are what `num_steps` counts
        # A reader who came too late to be seen here finds the new step by itself.
        if self._reader is not None:
            self._call_reader()

    def finish(self, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        """End the sequence and tell its owner, once, and then its reader.

        What they raise is logged: it concerns neither the caller nor other sequences.
        """
        assert self.finish_reason is None
        self.error = error
        self.finish_reason = reason  # last, so that whoever sees it finds the error too
        # Let go of the owner, who holds this sequence: a cycle would keep all of its arrays.
        on_finished, self._on_finished = self._on_finished, _nothing
        try:
            on_finished(self)
        except Exception:
            LOGGER.exception("request %s: its owner failed at the end", self.request_id)
        self._owner_knows = True
        self._call_reader()

    def _call_reader(self) -> None:
        with self._reader_lock:
            reader = self._reader
            if reader is None or not (self._owner_knows or self.num_steps >= reader.num_steps):
                return
            self._reader = None
        try:
            reader.callback()
        except Exception:
            LOGGER.exception("request %s: its reader failed", self.request_id)


def _nothing(_: Sequence) -> None:
    """Stands where the owner of a finished sequence was."""
