"""One text in the `gpt` member: its segments, each refined where wanted, then turned into codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chattts_triton.config import MAX_TEXT_IDS
from chattts_triton.engine.sequence import Deadline, FinishReason, Sequence, Stage
from chattts_triton.errors import ChatTTSError, GenerationError, RequestCancelledError
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.text.prompt import PromptEncoder
from chattts_triton.text.refinement import is_faithful

REFINE_REFUSED = "refine_refused"
MAX_REFINED_IDS = 384  # upstream's own cap
# A refinement that has not ended by then has strayed, and need not be waited for.
REFINED_IDS_PER_PROMPT_ID = 2
SPARE_REFINED_IDS = 32
_Ids = npt.NDArray[np.int32]

# Upstream's own for a refinement; what a caller sets is for the codes.
_REFINEMENT = SamplingParams(
    seed=0,
    max_new_codes=MAX_REFINED_IDS,
    temperature=0.7,
    top_p=0.7,
    top_k=20,
    repetition_penalty=1.0,
)


def max_refined_ids(num_prompt_ids: int) -> int:
    """The cap on steps of a refinement."""
    return min(MAX_REFINED_IDS, REFINED_IDS_PER_PROMPT_ID * num_prompt_ids + SPARE_REFINED_IDS)


@dataclass
class Segment:
    """A part of a text that is spoken by a sequence of its own."""

    text: str
    text_ids: _Ids  # (T,), the prompt of its codes
    refine_ids: _Ids | None  # (T,), the prompt of its refinement; None where none is wanted
    params: SamplingParams
    refined_text: str = ""
    codes: Sequence | None = None  # set once its codes can be generated


@dataclass
class Prompting:
    """What all segments of a text have in common."""

    request_id: str
    speaker_embedding: npt.NDArray[np.float32]  # (hidden,)
    prompt_codes: _Ids | None  # (P, num_vq)
    prompt_text: str
    speed: int
    deadline: Deadline | None
    priority: int


def first_cause(errors: list[ChatTTSError]) -> ChatTTSError | None:
    """Why a request failed: an error that is not the cancellation which another caused."""
    causes = [error for error in errors if not isinstance(error, RequestCancelledError)]
    return next(iter(causes or errors), None)


class Utterance:
    """Follows the segments of one text through the engine, on the engine's thread once added."""

    def __init__(
        self,
        segments: list[Segment],
        prompting: Prompting,
        warnings: list[str],
        encoder: PromptEncoder,
        go_on: Callable[[Sequence], None],
        on_changed: Callable[[Utterance], None],
    ) -> None:
        """Prepare a text.

        Args:
            segments: At least one.
            prompting: What they have in common.
            warnings: Codes that earlier members gave.
            encoder: Makes the prompt of a refined text.
            go_on: Takes the sequence that follows from one that has just ended.
            on_changed: Called when the codes of a refined segment begin, when a segment has
                failed, and when every segment has ended.
        """
        self.segments = segments
        self.warnings = list(warnings)
        self.errors: list[ChatTTSError] = []
        self.begun: list[Sequence] = []  # refinements and codes
        self._prompting = prompting
        self._encoder = encoder
        self._go_on = go_on
        self._on_changed = on_changed
        self._num_open = len(segments)

    def sequence(self, index: int) -> Sequence:
        """What to add to the engine at first for a segment, once."""
        segment = self.segments[index]
        return self._speak(segment) if segment.refine_ids is None else self._refine(segment)

    def sequences(self) -> list[Sequence]:
        """What to add to the engine at first for all segments."""
        return [self.sequence(index) for index in range(len(self.segments))]

    @property
    def finish_reason(self) -> FinishReason:
        """LENGTH if any segment was cut."""
        was_cut = any(
            segment.codes and segment.codes.finish_reason is FinishReason.LENGTH
            for segment in self.segments
        )
        return FinishReason.LENGTH if was_cut else FinishReason.STOP

    @property
    def refined_text(self) -> str:
        """What was spoken in place of the text, empty without refinement."""
        if not any(segment.refined_text for segment in self.segments):
            return ""
        return " ".join(segment.refined_text or segment.text for segment in self.segments)

    @property
    def warnings_json(self) -> bytes:
        """The tensor WARNINGS."""
        return json.dumps(self.warnings).encode()

    def _speak(self, segment: Segment) -> Sequence:
        segment.codes = self._sequence(
            segment.text_ids,
            segment.params,
            lambda sequence: self._end(sequence.error),
            prompt_codes=self._prompting.prompt_codes,
        )
        return segment.codes

    def _refine(self, segment: Segment) -> Sequence:
        assert segment.refine_ids is not None
        return self._sequence(
            segment.refine_ids,
            replace(
                _REFINEMENT,
                seed=segment.params.seed,
                max_new_codes=max_refined_ids(len(segment.refine_ids)),
            ),
            lambda sequence: self._on_refined(segment, sequence),
            stage=Stage.TEXT,
        )

    def _sequence(
        self,
        ids: _Ids,
        params: SamplingParams,
        on_finished: Callable[[Sequence], None],
        stage: Stage = Stage.CODE,
        prompt_codes: _Ids | None = None,
    ) -> Sequence:
        sequence = Sequence(
            self._prompting.request_id,
            ids,
            self._prompting.speaker_embedding,
            params,
            on_finished,
            stage=stage,
            prompt_codes=prompt_codes,
            deadline=self._prompting.deadline,
            priority=self._prompting.priority,
        )
        self.begun.append(sequence)
        return sequence

    def _on_refined(self, segment: Segment, sequence: Sequence) -> None:
        if sequence.error:
            self._end(sequence.error)
            return
        try:
            self._take_refinement(segment, sequence)
        except Exception as error:  # noqa: BLE001 - the sequence is gone, so nobody else would end it
            name = type(error).__name__  # its message could quote the text
            self._end(GenerationError(f"refined text cannot be read: {name}"))
        else:
            codes = self._speak(segment)
            self._on_changed(self)  # first: it may end at once
            self._go_on(codes)

    def _take_refinement(self, segment: Segment, sequence: Sequence) -> None:
        refined = self._encoder.decode_refined(sequence.tokens[:, 0])
        ids = self._encoder.encode(refined, self._prompting.speed, self._prompting.prompt_text)
        is_whole = sequence.finish_reason is FinishReason.STOP and len(ids) <= MAX_TEXT_IDS
        if is_whole and is_faithful(segment.text, refined):
            segment.refined_text = refined
            segment.text_ids = np.asarray(ids, dtype=np.int32)
        elif REFINE_REFUSED not in self.warnings:
            self.warnings.append(REFINE_REFUSED)

    def _end(self, error: ChatTTSError | None) -> None:
        if error:
            self.errors.append(error)
        self._num_open -= 1
        if self._num_open == 0 or error:
            self._on_changed(self)

    @property
    def has_ended(self) -> bool:
        """Whether every segment has."""
        return self._num_open == 0
