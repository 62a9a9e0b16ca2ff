"""One sequence in the engine: what was asked, what has been generated, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import ChatTTSError
from chattts_triton.sampling_params import SamplingParams


class FinishReason(Enum):
    """Why a sequence left the batch."""

    STOP = "stop"  # it drew the end code
    LENGTH = "length"  # it reached its cap on steps: the audio is cut
    ABORT = "abort"  # cancelled, timed out or failed; `Sequence.error` says why


class Sequence:
    """A text on its way through the engine. Only the engine's thread changes it once added."""

    def __init__(
        self,
        request_id: str,
        text_ids: npt.NDArray[np.int32],
        speaker_embedding: npt.NDArray[np.float32],
        params: SamplingParams,
        on_finished: Callable[[Sequence], None],
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Prepare a sequence.

        Args:
            request_id: The caller's name for it, for logs and `abort`.
            text_ids: (T,) int32, the whole prompt.
            speaker_embedding: (hidden,) float32, put in place of the prompt's speaker slot.
            params: How its codes are drawn.
            on_finished: Called once, on the engine's thread, when it has ended; must not block.
            deadline_s: `time.monotonic()` at which it is given up.
        """
        self.request_id = request_id
        self.text_ids = text_ids
        self.speaker_embedding = speaker_embedding
        self.params = params
        self.deadline_s = deadline_s
        self.arrival_s = time.monotonic()
        self.first_step_s: float | None = None
        self.finish_reason: FinishReason | None = None
        self.error: ChatTTSError | None = None
        self._on_finished = on_finished
        self._codes: list[npt.NDArray[np.int64]] = []
        self._hiddens: list[npt.NDArray[np.float32]] = []

    @property
    def num_text_ids(self) -> int:
        """Length of the prompt."""
        return len(self.text_ids)

    @property
    def num_codes(self) -> int:
        """Code steps generated so far."""
        return len(self._codes)

    @property
    def num_cached(self) -> int:
        """Positions in the KV slot that the next decode step builds on."""
        # The newest codes are only embedded, and so cached, by the step that follows them.
        return self.num_text_ids + max(self.num_codes - 1, 0)

    @property
    def last_codes(self) -> npt.NDArray[np.int64]:
        """(num_vq,) int64, the codes that the next step is fed."""
        return self._codes[-1]

    @property
    def codes(self) -> npt.NDArray[np.int64]:
        """(T, num_vq) int64."""
        return np.stack(self._codes)

    @property
    def hiddens(self) -> npt.NDArray[np.float32]:
        """(T, hidden) float32, one for each of `codes`."""
        return np.stack(self._hiddens)

    def append(self, codes: npt.NDArray[np.int64], hidden: npt.NDArray[np.float32]) -> None:
        """Take one step's codes (num_vq,) and the hidden state (hidden,) they were drawn from."""
        self._codes.append(codes)
        self._hiddens.append(hidden)

    def finish(self, reason: FinishReason, error: ChatTTSError | None = None) -> None:
        """End the sequence and tell its owner, once."""
        assert self.finish_reason is None
        self.finish_reason = reason
        self.error = error
        self._on_finished(self)
