"""Reads the tensors of the `gpt` member, row by row; refuses what would fail inside a step."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import DEFAULT_SPEED, MAX_SPEED, MIN_SPEED
from chattts_triton.engine.sequence import Deadline
from chattts_triton.errors import InvalidRequestError
from chattts_triton.manifest import Dims
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.edge import Tensors, split_segments
from chattts_triton.serving.utterance import Prompting, Segment
from chattts_triton.tensors import PROMPT as REQUIRED
from chattts_triton.text.cleaner import decode_text


@dataclass(frozen=True)
class PromptReader:
    """The inputs of one request of N texts.

    Raises:
        InvalidRequestError: In every method: a length, an id, a code or the width of a vector is
            out of range. A step that met one would fail all of its sequences.
    """

    inputs: Tensors
    dims: Dims

    def __post_init__(self) -> None:
        for spec in REQUIRED:
            if spec.name not in self.inputs:
                raise InvalidRequestError(f"{spec.name}: missing")

    def segments(self, row: int) -> list[Segment]:
        """The segments of one text."""
        inputs = self.inputs
        ids = self._ids("TEXT_IDS", "NUM_TEXT_IDS", row)
        refine_ids = self._refine_ids(row)
        if refine_ids and len(refine_ids) != len(ids):
            raise InvalidRequestError.of("NUM_REFINE_IDS", len(refine_ids), f"{len(ids)} segments")
        for name in ("SEED", "MAX_NEW_CODES"):
            if inputs[name].shape[1] < len(ids):
                raise InvalidRequestError.of(name, inputs[name].shape[1], f"{len(ids)} segments")
        return [
            Segment(
                text=self._text("SEGMENT_TEXT", row, i),
                text_ids=segment_ids,
                refine_ids=refine_ids[i] if refine_ids else None,
                params=SamplingParams(
                    seed=int(inputs["SEED"][row, i]),
                    max_new_codes=int(inputs["MAX_NEW_CODES"][row, i]),
                    temperature=float(inputs["TEMPERATURE"][row, 0]),
                    top_p=float(inputs["TOP_P"][row, 0]),
                    top_k=int(inputs["TOP_K"][row, 0]),
                    repetition_penalty=float(inputs["REPETITION_PENALTY"][row, 0]),
                ),
            )
            for i, segment_ids in enumerate(ids)
        ]

    def prompting(
        self, row: int, request_id: str, deadline: Deadline | None, priority: int
    ) -> Prompting:
        """What the segments of one text have in common."""
        embedding = self.inputs["SPEAKER_EMBEDDING"][row]
        if len(embedding) != self.dims.hidden_size:
            wanted = f"{self.dims.hidden_size} values"
            raise InvalidRequestError.of("SPEAKER_EMBEDDING", len(embedding), wanted)
        speeds = self.inputs.get("SPEED")
        speed = DEFAULT_SPEED if speeds is None else int(speeds[row, 0])
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise InvalidRequestError.of("SPEED", speed, f"{MIN_SPEED} to {MAX_SPEED}")
        return Prompting(
            request_id=request_id,
            speaker_embedding=embedding,
            prompt_codes=self._prompt_codes(row),
            prompt_text=self._text("PROMPT_TEXT", row, 0),
            speed=speed,
            deadline=deadline,
            priority=priority,
        )

    def warnings(self, row: int) -> list[str]:
        """Codes that earlier members gave."""
        text = self._text("WARNINGS", row, 0) or "[]"
        try:
            codes = json.loads(text)
        except ValueError:
            codes = None
        if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            raise InvalidRequestError.of("WARNINGS", text, "a JSON list of codes")
        return codes

    def _ids(self, name: str, lengths_name: str, row: int) -> list[npt.NDArray[np.int32]]:
        values = self.inputs[name][row]
        limit = self.dims.num_text_tokens
        wrong = values[(values < 0) | (values >= limit)]
        if wrong.size:
            raise InvalidRequestError.of(name, int(wrong[0]), f"0 to {limit - 1}")
        return split_segments(lengths_name, values, self.inputs[lengths_name][row])

    def _refine_ids(self, row: int) -> list[npt.NDArray[np.int32]]:
        lengths = self.inputs.get("NUM_REFINE_IDS")
        if lengths is None or "REFINE_IDS" not in self.inputs or not lengths[row].any():
            return []
        return self._ids("REFINE_IDS", "NUM_REFINE_IDS", row)

    def _prompt_codes(self, row: int) -> npt.NDArray[np.int32] | None:
        lengths, codes = self.inputs.get("NUM_PROMPT_CODES"), self.inputs.get("PROMPT_CODES")
        if lengths is None or codes is None or lengths[row, 0] == 0:
            return None
        (sample,) = split_segments("NUM_PROMPT_CODES", codes[row], lengths[row])
        limit = self.dims.num_audio_tokens
        if sample.shape[1] != self.dims.num_vq:
            raise InvalidRequestError.of(
                "PROMPT_CODES", sample.shape[1], f"{self.dims.num_vq} codes a step"
            )
        wrong = sample[(sample < 0) | (sample >= limit)]
        if wrong.size:
            raise InvalidRequestError.of("PROMPT_CODES", int(wrong[0]), f"0 to {limit - 1}")
        return sample

    def _text(self, name: str, row: int, index: int) -> str:
        values = self.inputs.get(name)
        if values is None or index >= values.shape[1]:
            return ""
        return decode_text(bytes(values[row, index]), name)
