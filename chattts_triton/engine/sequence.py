"""One sequence in the engine: what was asked, what has been generated, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import ChatTTSError
from chattts_triton.sampling_params import SamplingParams


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
    def after(cls, timeout_s: float) -> Deadline:
        """The deadline of a request that has just come."""
        return cls(timeout_s, time.monotonic() + timeout_s)


class Sequence:
    """A prompt on its way through the engine. Only the engine's thread changes it once added."""

    def __init__(
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
    ) -> None:
        """Prepare a sequence.

        Args:
            request_id: The caller's name for it, for logs and `abort`.
            text_ids: (T,) int32, the prompt's text.
            speaker_embedding: (hidden,) float32, put in place of the prompt's speaker slot.
            params: How its tokens are drawn.
            on_finished: Called once, on the engine's thread, when it has ended; must not block.
            stage: What is generated.
            prompt_codes: (P, num_vq) int32, codes of a voice sample that follow the text.
            deadline: When it is given up.
        """
        self.request_id = request_id
        self.stage = stage
        self.text_ids = text_ids
        self.prompt_codes = prompt_codes
        self.speaker_embedding = speaker_embedding
        self.params = params
        self.deadline = deadline
        self.arrival_s = time.monotonic()
        self.first_step_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.error: ChatTTSError | None = None
        self._on_finished = on_finished
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._hiddens: list[npt.NDArray[np.float32]] = []

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt: text ids, and codes of a voice sample."""
        return len(self.text_ids) + (0 if self.prompt_codes is None else len(self.prompt_codes))

    @property
    def num_steps(self) -> int:
        """Steps generated so far."""
        return len(self._tokens)

    @property
    def num_cached(self) -> int:
        """Positions in the KV slot that the next decode step builds on."""
        # The newest tokens are only embedded, and so cached, by the step that follows them.
        return self.num_prompt_tokens + max(self.num_steps - 1, 0)

    @property
    def last_tokens(self) -> npt.NDArray[np.int64]:
        """(num_vq,) codes or (1,) text id, int64, that the next step is fed."""
        return self._tokens[-1]

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """(T, num_vq) codes or (T, 1) text ids, int64."""
        return np.stack(self._tokens)

    @property
    def hiddens(self) -> npt.NDArray[np.float32]:
        """(T, hidden) float32, one for each of `tokens`."""
        return np.stack(self._hiddens)

    def append(self, tokens: npt.NDArray[np.int64], hidden: npt.NDArray[np.float32]) -> None:
        """Take one step's tokens and the hidden state (hidden,) they were drawn from."""
        self._tokens.append(tokens)
        self._hiddens.append(hidden)

    def finish(self, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        """End the sequence and tell its owner, once."""
        assert self.finish_reason is None
        self.finish_reason = reason
        self.error = error
        # Let go of the owner, who holds this sequence: a cycle would keep all of its arrays.
        on_finished, self._on_finished = self._on_finished, _nothing
        on_finished(self)


def _nothing(_: Sequence) -> None:
    """Stands where the owner of a finished sequence was."""
