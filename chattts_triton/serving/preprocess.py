"""The `preprocess` member: texts and options -> prompts of their segments, voices, settings."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.config import MAX_TEXT_IDS, PreprocessConfig, read_config
from chattts_triton.constants import NUM_VQ, SAMPLE_RATE_HZ, default_max_new_codes
from chattts_triton.errors import InvalidRequestError
from chattts_triton.sampling_params import MAX_SEED
from chattts_triton.serving.edge import (
    ModelArgs,
    Tensors,
    TritonEdge,
    check_call_size,
    column,
    pad_rows,
)
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.options import Inputs, RowOptions, read_row
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.serving.request_log import RequestLog
from chattts_triton.serving.series import Metrics
from chattts_triton.text.cleaner import decode_text
from chattts_triton.text.homophones import HOMOPHONES_FILE, load_homophones
from chattts_triton.text.lexicon import LEXICON_FILE
from chattts_triton.text.normalizer import TextNormalizer
from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder
from chattts_triton.text.segments import Segment
from chattts_triton.text.tags import split_tags
from chattts_triton.voices.book import Voice, VoiceBook
from chattts_triton.voices.book_file import FILE_NAME as BOOK_FILE
from chattts_triton.voices.speaker import STATISTICS_FILE, SpeakerStatistics

_WARM_UP_TEXT = "今天是2024年5月6日，3.5元。It costs $3.50 at 14:05."
UNKNOWN_WORDS = "unknown_words"
_REFINEMENT_TAGS = ("[oral_", "[laugh_", "[break_")  # they steer a refinement, and are not spoken


@dataclass(frozen=True)
class _Row:
    options: RowOptions
    voice: Voice
    prompt_text: str
    segments: list[_Segment]
    warnings: list[str]


@dataclass(frozen=True)
class _Segment:
    text: str
    text_ids: list[int]
    refine_ids: list[int]  # empty where no refinement is wanted
    seed: int
    max_new_codes: int
    pause_samples: int


class PreprocessModel:
    """Checks a call and turns its texts into what `gpt` takes; any thread may call `run`.

    Args:
        directory: Holds the tokenizer, speaker statistics and homophones of an export, and the
            voices that its checkpoint brought, if it brought any.
        special_ids: Ids of the special tokens, from the manifest.
        model_directory: Holds what the operator may change while the model serves: voices.json
            and lexicon.tsv, both optional; None does without them.
        parameters: Those of config.pbtxt, see PreprocessConfig.

    Raises:
        ModelLoadError: A file is missing, damaged or of another export.
    """

    def __init__(
        self,
        directory: Path,
        special_ids: Mapping[str, int],
        model_directory: Path | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        self._prompts = PromptEncoder(directory / TOKENIZER_FILE, special_ids)
        homophones = load_homophones(directory / HOMOPHONES_FILE)
        lexicon = model_directory / LEXICON_FILE if model_directory else None
        config = read_config(PreprocessConfig, parameters or {})
        self._max_characters = config.max_characters
        self._normalizer = TextNormalizer(homophones, lexicon, max_characters=config.max_characters)
        statistics = SpeakerStatistics(directory / STATISTICS_FILE)
        voices = model_directory / BOOK_FILE if model_directory else None
        self._voices = VoiceBook(voices, statistics, shipped=directory / BOOK_FILE)

    def run(self, inputs: Tensors, parameters: dict[str, object]) -> Tensors:
        """One call of N texts.

        Args:
            inputs: Tensors by name, each (N, 1); optional ones that were not sent are left out.
            parameters: The request's own, which apply to every row; a tensor wins.

        Returns:
            The outputs of `tensors.PREPROCESS` but for RECORD.

        Raises:
            InvalidRequestError: Any input is wrong; the message begins with the field, and with
                the row where there are several.
        """
        checked = Inputs(inputs, parameters)
        rows = [self._run_row(checked, row) for row in range(checked.num_rows)]
        check_call_size("TEXT", [sum(s.max_new_codes for s in row.segments) for row in rows])
        return _collect(rows)

    def warm_up(self) -> None:
        """Read the grammars and tables that are read when first needed, before any request."""
        text = _WARM_UP_TEXT[: self._max_characters]
        self.run({"TEXT": column([text.encode()], np.object_)}, {})

    def _run_row(self, inputs: Inputs, row: int) -> _Row:
        options = read_row(inputs, row)
        field = inputs.field("TEXT", row)
        text = decode_text(inputs.get("TEXT", row), field)
        normalized = self._normalizer.normalize(text, options.language, field=field)
        voice = self._voices.resolve(options.voice, options.seed, inputs.field("VOICE", row))
        prompt_text = self._prompt_text(voice, inputs.field("VOICE", row))
        segments = [
            self._segment(options, segment, index, prompt_text, inputs.field("VOICE", row))
            for index, segment in enumerate(normalized.segments)
        ]
        return _Row(options, voice, prompt_text, segments, self._warnings(normalized.text))

    def _warnings(self, text: str) -> list[str]:
        vocabulary = self._prompts.vocabulary
        return [UNKNOWN_WORDS] if vocabulary and vocabulary.unknown_words(text) else []

    def _prompt_text(self, voice: Voice, field: str) -> str:
        if voice.prompt_codes is None or not voice.prompt_text:
            return ""
        return self._normalizer.normalize(voice.prompt_text, field=f"{field}: its transcript").text

    def _segment(
        self, options: RowOptions, segment: Segment, index: int, prompt_text: str, voice_field: str
    ) -> _Segment:
        text, refinement_tags = str(segment.text), ""
        if options.refine:
            text, refinement_tags = take_refinement_tags(segment.text)
        ids = self._prompts.encode(text, options.speed, prompt_text)
        if len(ids) > MAX_TEXT_IDS:  # no segment is so long but for the transcript before it
            raise InvalidRequestError(
                f"{voice_field}: got a transcript that makes a prompt of {len(ids)} ids, "
                f"wanted at most {MAX_TEXT_IDS}"
            )
        num_characters = sum(1 if p.is_tag else len(p.text) for p in split_tags(text))
        return _Segment(
            text=text,
            text_ids=ids,
            refine_ids=(
                self._prompts.encode_refinement(text, refinement_tags) if options.refine else []
            ),
            seed=segment_seed(options.seed, index),
            max_new_codes=options.max_new_codes or default_max_new_codes(num_characters),
            pause_samples=segment.pause_ms * SAMPLE_RATE_HZ // 1000,
        )


class PreprocessMember:
    """The model behind Triton's request objects; the record of each request begins here.

    A request that fails here is written down, unless it belongs to a stream, which does so itself.

    Args:
        edge: Of this model.
        args: What Triton told it.
        metrics: Of this process; started and closed here.
    """

    def __init__(self, edge: TritonEdge, args: ModelArgs, metrics: Metrics) -> None:
        self._edge = edge
        self._metrics = metrics
        manifest, directory = args.load_manifest()
        self._model = PreprocessModel(
            directory, manifest.special_ids, args.directory, args.parameters
        )
        self._requests = RequestLog(args.ensemble, RequestMetrics(metrics, args.ensemble))
        self._model.warm_up()
        metrics.start()

    def answer(self, request: Any) -> Any:
        """The response to one request."""
        record = RequestRecord.begin(request.request_id(), time.monotonic())

        def run(inputs: Tensors, parameters: dict[str, object]) -> Tensors:
            outputs = self._model.run(inputs, parameters)
            texts = [decode_text(text) for text in inputs["TEXT"][:, 0]]
            record.seed = int(outputs["SEED_USED"][0, 0])
            record.num_texts = len(texts)
            record.characters = sum(map(len, texts))
            self._requests.write_texts(record, texts)
            return {**outputs, "RECORD": to_tensor(record, len(texts))}

        def on_error(error: Exception) -> None:
            if not self._edge.is_for_stream(request):
                record.end(error)
                self._requests.write(record)

        return self._edge.answer(request, run, on_error)

    def close(self) -> None:
        """Publish what has been counted."""
        self._metrics.close()


def segment_seed(seed: int, index: int) -> int:
    """The seed of a text's segment: the text's own for the first, then well mixed ones.

    Source:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators": SplitMix64.
    """
    if index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) & MAX_SEED


def take_refinement_tags(text: str) -> tuple[str, str]:
    """A text without the tags that steer its refinement, and those tags in their order."""
    pieces = split_tags(text)
    steering = [p.text for p in pieces if p.is_tag and p.text.startswith(_REFINEMENT_TAGS)]
    kept = [p.text for p in pieces if not (p.is_tag and p.text.startswith(_REFINEMENT_TAGS))]
    return "".join(kept), "".join(steering)


def _collect(rows: list[_Row]) -> Tensors:
    """Stack rows into tensors."""
    return {
        "TEXT_IDS": _joined([[s.text_ids for s in row.segments] for row in rows]),
        "NUM_TEXT_IDS": _per_segment([[len(s.text_ids) for s in row.segments] for row in rows]),
        "REFINE_IDS": _joined([[s.refine_ids for s in row.segments] for row in rows]),
        "NUM_REFINE_IDS": _per_segment([[len(s.refine_ids) for s in row.segments] for row in rows]),
        "SEGMENT_TEXT": pad_rows(
            [np.array([s.text.encode() for s in row.segments], np.object_) for row in rows]
        ),
        "SEED": _per_segment([[s.seed for s in row.segments] for row in rows], np.int64),
        "MAX_NEW_CODES": _per_segment([[s.max_new_codes for s in row.segments] for row in rows]),
        "PAUSE_SAMPLES": _per_segment([[s.pause_samples for s in row.segments] for row in rows]),
        "SPEAKER_EMBEDDING": np.stack([row.voice.embedding for row in rows]),
        "PROMPT_CODES": pad_rows([_prompt_codes(row.voice) for row in rows]),
        "NUM_PROMPT_CODES": column(
            [0 if row.voice.prompt_codes is None else len(row.voice.prompt_codes) for row in rows],
            np.int32,
        ),
        "PROMPT_TEXT": column([row.prompt_text.encode() for row in rows], np.object_),
        "SEED_USED": column([row.options.seed for row in rows], np.int64),
        "SPEED": column([row.options.speed for row in rows], np.int32),
        "TEMPERATURE": column([row.options.temperature for row in rows], np.float32),
        "TOP_P": column([row.options.top_p for row in rows], np.float32),
        "TOP_K": column([row.options.top_k for row in rows], np.int32),
        "REPETITION_PENALTY": column([row.options.repetition_penalty for row in rows], np.float32),
        "TRIM": column([row.options.trim for row in rows], np.bool_),
        "WARNINGS": column([json.dumps(row.warnings).encode() for row in rows], np.object_),
    }


def _joined(rows: list[list[list[int]]]) -> npt.NDArray[np.int32]:
    """Ids of each row's segments one behind the other; never empty, which Triton would refuse."""
    return pad_rows([np.array([i for ids in row for i in ids] or [0], np.int32) for row in rows])


def _per_segment(
    rows: list[list[int]], dtype: npt.DTypeLike = np.int32
) -> npt.NDArray[np.int32 | np.int64]:
    return pad_rows([np.array(row, dtype) for row in rows])


def _prompt_codes(voice: Voice) -> npt.NDArray[np.int32]:
    if voice.prompt_codes is None:
        return np.zeros((1, NUM_VQ), np.int32)
    return voice.prompt_codes.astype(np.int32)
