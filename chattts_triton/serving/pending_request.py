"""One call of the `gpt` member whose texts are in the engine, answered when all have ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.errors import ChatTTSError
from chattts_triton.serving.edge import Tensors, column, pad_rows
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.serving.utterance import Utterance, first_cause


class PendingRequest:
    """The request, and where its texts have come to."""

    def __init__(self, request: Any, sender: Any, request_id: str) -> None:
        self.request = request
        self.sender = sender
        self.request_id = request_id
        self.record: RequestRecord | None = None  # None: nobody asked for `chattts`
        self.utterances: list[Utterance] = []

    @property
    def has_ended(self) -> bool:
        """Whether every text has."""
        return all(utterance.has_ended for utterance in self.utterances)

    @property
    def error(self) -> ChatTTSError | None:
        """Why the request failed."""
        return first_cause([error for utterance in self.utterances for error in utterance.errors])

    def note(self) -> None:
        """Write down what has been generated."""
        sequences = [s for utterance in self.utterances for s in utterance.begun]
        note_sequences(self.record, sequences)
        if self.record:
            self.record.num_cut = sum(
                utterance.finish_reason is FinishReason.LENGTH for utterance in self.utterances
            )

    def outputs(self) -> Tensors:
        """The tensors of a request all of whose texts have ended well."""
        spoken = [
            [segment.codes for segment in utterance.segments if segment.codes]
            for utterance in self.utterances
        ]
        reasons = [utterance.finish_reason.value.encode() for utterance in self.utterances]
        refined = [utterance.refined_text.encode() for utterance in self.utterances]
        warnings = [utterance.warnings_json for utterance in self.utterances]
        return {
            "HIDDENS": pad_rows([np.concatenate([s.hiddens for s in row]) for row in spoken]),
            "CODES": pad_rows(
                [np.concatenate([s.tokens for s in row]).astype(np.int32) for row in spoken]
            ),
            "NUM_CODES": pad_rows([np.asarray([s.num_steps for s in r], np.int32) for r in spoken]),
            "FINISH_REASON": column(reasons, np.object_),
            "REFINED_TEXT": column(refined, np.object_),
            "WARNINGS": column(warnings, np.object_),
            "RECORD": to_tensor(self.record, len(spoken)),
        }


def note_sequences(record: RequestRecord | None, sequences: list[Sequence]) -> None:
    """Write down how many steps there are of codes, and how long the first sequence waited."""
    if record is None:
        return
    record.steps = sum(s.num_steps for s in sequences if s.stage is Stage.CODE)
    first_steps_s = [s.first_step_s for s in sequences if s.first_step_s is not None]
    if first_steps_s:
        record.queue_ms = (min(first_steps_s) - sequences[0].arrival_s) * 1000
