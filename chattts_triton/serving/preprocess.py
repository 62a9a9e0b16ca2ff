"""The `preprocess` member: texts and options -> text ids, speaker vectors, sampling settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chattts_triton.config import MAX_TEXT_IDS
from chattts_triton.constants import default_max_new_codes
from chattts_triton.errors import InvalidRequestError
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.edge import Tensors, column, pad_rows
from chattts_triton.serving.options import Inputs, RowOptions, read_row
from chattts_triton.text.cleaner import clean, decode_text
from chattts_triton.text.prompt import PromptEncoder
from chattts_triton.text.tags import split_tags
from chattts_triton.voice import SpeakerStatistics, decode_speaker, speaker_embedding

TOKENIZER_FILE = "tokenizer.json"
SPEAKER_STATISTICS_FILE = "speaker_statistics.npy"


@dataclass(frozen=True)
class _Row:
    text_ids: list[int]
    speaker_embedding: npt.NDArray[np.float32]  # (H,)
    sampling: SamplingParams


class PreprocessModel:
    """Checks a call and turns its texts into what `gpt` takes; any thread may call `run`.

    Args:
        directory: Holds `tokenizer.json` and `speaker_statistics.npy` of an export.
        special_ids: Ids of the special tokens, from the manifest.
        max_text_ids: The longest prompt that is accepted, its own four ids included.

    Raises:
        ModelLoadError: A file is missing, damaged or of another export.
    """

    def __init__(
        self,
        directory: Path,
        special_ids: Mapping[str, int],
        *,
        max_text_ids: int = MAX_TEXT_IDS,
    ) -> None:
        self._prompts = PromptEncoder(directory / TOKENIZER_FILE, special_ids)
        self._speakers = SpeakerStatistics(directory / SPEAKER_STATISTICS_FILE)
        self._max_text_ids = max_text_ids

    def run(self, inputs: Tensors, parameters: dict[str, object]) -> Tensors:
        """One call of N texts.

        Args:
            inputs: Tensors by name, each (N, 1); optional ones that were not sent are left out.
            parameters: The request's own, which apply to every row; a tensor wins.

        Returns:
            TEXT_IDS (N, T) int32, padded with 0 to the longest, and the other outputs of
            `tensors.PREPROCESS`.

        Raises:
            InvalidRequestError: Any input is wrong; the message begins with the field, and with
                the row where there are several.
        """
        checked = Inputs(inputs, parameters)
        rows = [self._run_row(checked, row) for row in range(checked.num_rows)]
        return _collect(rows)

    def _run_row(self, inputs: Inputs, row: int) -> _Row:
        options = read_row(inputs, row)
        field = inputs.field("TEXT", row)
        text = clean(decode_text(inputs.get("TEXT", row), field), options.language, field)
        embedding = self._speaker_embedding(options, inputs.field("VOICE", row))
        text_ids = self._prompts.encode(text, options.speed)
        if len(text_ids) > self._max_text_ids:
            raise InvalidRequestError(
                f"{field}: got a text of {len(text_ids)} ids, wanted at most {self._max_text_ids}"
            )
        num_characters = sum(1 if piece.is_tag else len(piece.text) for piece in split_tags(text))
        return _Row(
            text_ids=text_ids,
            speaker_embedding=embedding,
            sampling=SamplingParams(
                seed=options.seed,
                max_new_codes=options.max_new_codes or default_max_new_codes(num_characters),
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                repetition_penalty=options.repetition_penalty,
            ),
        )

    def _speaker_embedding(self, options: RowOptions, field: str) -> npt.NDArray[np.float32]:
        if options.voice:
            vector = decode_speaker(options.voice, self._speakers.hidden_size, field)
        else:
            vector = self._speakers.draw(options.seed)
        return speaker_embedding(vector, field)


def _collect(rows: list[_Row]) -> Tensors:
    """Stack rows into tensors."""
    sampling = [row.sampling for row in rows]
    seeds = column([each.seed for each in sampling], np.int64)
    return {
        "TEXT_IDS": pad_rows([np.array(row.text_ids, np.int32) for row in rows]),
        "NUM_TEXT_IDS": column([len(row.text_ids) for row in rows], np.int32),
        "SPEAKER_EMBEDDING": np.stack([row.speaker_embedding for row in rows]),
        "SEED_USED": seeds,
        "SEED": seeds,
        "TEMPERATURE": column([each.temperature for each in sampling], np.float32),
        "TOP_P": column([each.top_p for each in sampling], np.float32),
        "TOP_K": column([each.top_k for each in sampling], np.int32),
        "REPETITION_PENALTY": column([each.repetition_penalty for each in sampling], np.float32),
        "MAX_NEW_CODES": column([each.max_new_codes for each in sampling], np.int32),
    }
