"""Every tensor of every model, declared once; a test holds each config.pbtxt against this file."""

from __future__ import annotations

from dataclasses import dataclass, replace

MAX_BATCH_SIZE = 64  # texts in one call


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a model; `shape` leaves the batch dimension out, -1 is any length."""

    name: str
    dtype: str  # Triton's name, without the TYPE_ of config.pbtxt
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """The inputs and outputs of one model of the repository."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_stream: bool = False


# Required, but declared optional: otherwise Triton answers a call without it before `preprocess`
# can, with a "deadlock" that names no tensor.
TEXT = TensorSpec("TEXT", "STRING", (1,), optional=True)
SEED = TensorSpec("SEED", "INT64", (1,), optional=True)
VOICE = TensorSpec("VOICE", "STRING", (1,), optional=True)
SPEED = TensorSpec("SPEED", "INT32", (1,), optional=True)
TEMPERATURE = TensorSpec("TEMPERATURE", "FP32", (1,), optional=True)
TOP_P = TensorSpec("TOP_P", "FP32", (1,), optional=True)
TOP_K = TensorSpec("TOP_K", "INT32", (1,), optional=True)
REPETITION_PENALTY = TensorSpec("REPETITION_PENALTY", "FP32", (1,), optional=True)
MAX_NEW_TOKENS = TensorSpec("MAX_NEW_TOKENS", "INT32", (1,), optional=True)
REFINE = TensorSpec("REFINE", "BOOL", (1,), optional=True)
LANG = TensorSpec("LANG", "STRING", (1,), optional=True)
TRIM = TensorSpec("TRIM", "BOOL", (1,), optional=True)

OPTIONS = (
    SEED,
    VOICE,
    SPEED,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    REPETITION_PENALTY,
    MAX_NEW_TOKENS,
    REFINE,
    LANG,
    TRIM,
)

AUDIO = TensorSpec("AUDIO", "FP32", (-1,))
AUDIO_LENGTH = TensorSpec("AUDIO_LENGTH", "INT64", (1,))
PCM16 = TensorSpec("PCM16", "INT16", (-1,))
SEED_USED = TensorSpec("SEED_USED", "INT64", (1,))
FINISH_REASON = TensorSpec("FINISH_REASON", "STRING", (1,))

REFINED_TEXT = TensorSpec("REFINED_TEXT", "STRING", (1,))
WARNINGS = TensorSpec("WARNINGS", "STRING", (1,))  # a JSON list of codes

# Between the members. A text is spoken in segments: what belongs to one has a value for each, 0
# or empty where another row has more. Ids and hidden states of all segments follow each other.
TEXT_IDS = TensorSpec("TEXT_IDS", "INT32", (-1,))
NUM_TEXT_IDS = TensorSpec("NUM_TEXT_IDS", "INT32", (-1,))
SEGMENT_SEED = TensorSpec("SEED", "INT64", (-1,))
MAX_NEW_CODES = TensorSpec("MAX_NEW_CODES", "INT32", (-1,))
SPEAKER_EMBEDDING = TensorSpec("SPEAKER_EMBEDDING", "FP32", (-1,))
SAMPLING_TEMPERATURE = TensorSpec("TEMPERATURE", "FP32", (1,))
SAMPLING_TOP_P = TensorSpec("TOP_P", "FP32", (1,))
SAMPLING_TOP_K = TensorSpec("TOP_K", "INT32", (1,))
SAMPLING_REPETITION_PENALTY = TensorSpec("REPETITION_PENALTY", "FP32", (1,))
HIDDENS = TensorSpec("HIDDENS", "FP32", (-1, -1))
CODES = TensorSpec("CODES", "INT32", (-1, -1))
NUM_CODES = TensorSpec("NUM_CODES", "INT32", (-1,))

# The codes of a voice sample and what is said in it.
PROMPT_CODES = TensorSpec("PROMPT_CODES", "INT32", (-1, -1), optional=True)
NUM_PROMPT_CODES = TensorSpec("NUM_PROMPT_CODES", "INT32", (1,), optional=True)
PROMPT_TEXT = TensorSpec("PROMPT_TEXT", "STRING", (1,), optional=True)

# Prompts of the refinement, none of them where it is not wanted, and what it has to keep to.
REFINE_IDS = TensorSpec("REFINE_IDS", "INT32", (-1,), optional=True)
NUM_REFINE_IDS = TensorSpec("NUM_REFINE_IDS", "INT32", (-1,), optional=True)
SEGMENT_TEXT = TensorSpec("SEGMENT_TEXT", "STRING", (-1,), optional=True)
PROMPT_SPEED = TensorSpec("SPEED", "INT32", (1,), optional=True)
WARNINGS_SO_FAR = TensorSpec("WARNINGS", "STRING", (1,), optional=True)

# What is known about the request so far, as JSON; see serving/record.py.
RECORD = TensorSpec("RECORD", "STRING", (1,), optional=True)

# A stream: its name, and which hidden states of which segment are to be read, once so many exist.
STREAM_ID = TensorSpec("STREAM_ID", "STRING", (1,), optional=True)
SEGMENT = TensorSpec("SEGMENT", "INT32", (1,), optional=True)
CURSOR = TensorSpec("CURSOR", "INT32", (1,), optional=True)
MIN_CODES = TensorSpec("MIN_CODES", "INT32", (1,), optional=True)
STEP_SECONDS = TensorSpec("STEP_SECONDS", "FP32", (1,))  # that a decode step takes at present

# A chunk of a stream.
MODE = TensorSpec("MODE", "STRING", (1,), optional=True)
MODE_USED = TensorSpec("MODE_USED", "STRING", (1,))
CHUNK_INDEX = TensorSpec("CHUNK_INDEX", "INT32", (1,))

# How the segments are joined.
PAUSE_SAMPLES = TensorSpec("PAUSE_SAMPLES", "INT32", (-1,), optional=True)
TRIM_SILENCE = TensorSpec("TRIM", "BOOL", (1,), optional=True)


def _always(spec: TensorSpec) -> TensorSpec:
    return replace(spec, optional=False)


_SAMPLING = (
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    SAMPLING_TOP_K,
    SAMPLING_REPETITION_PENALTY,
    MAX_NEW_CODES,
)
PROMPT = (TEXT_IDS, NUM_TEXT_IDS, SPEAKER_EMBEDDING, SEGMENT_SEED, *_SAMPLING)
_PROMPT_OPTIONS = (
    PROMPT_CODES,
    NUM_PROMPT_CODES,
    PROMPT_TEXT,
    REFINE_IDS,
    NUM_REFINE_IDS,
    SEGMENT_TEXT,
    PROMPT_SPEED,
    WARNINGS_SO_FAR,
)
_JOINING = (PAUSE_SAMPLES, TRIM_SILENCE)
READ = (STREAM_ID, SEGMENT, CURSOR, MIN_CODES)  # what an ensemble does not send

PREPROCESS = ModelSpec(
    "preprocess",
    inputs=(TEXT, *OPTIONS),
    # The seed comes out twice: an output of the ensemble may not feed another member as well.
    outputs=(
        TEXT_IDS,
        NUM_TEXT_IDS,
        SPEAKER_EMBEDDING,
        SEED_USED,
        SEGMENT_SEED,
        *_SAMPLING,
        *(_always(spec) for spec in (*_PROMPT_OPTIONS, *_JOINING, RECORD)),
    ),
)
GPT = ModelSpec(
    "gpt",
    # None is declared as required: a read of a stream that is open sends no prompt.
    inputs=tuple(
        replace(spec, optional=True) for spec in (*PROMPT, *_PROMPT_OPTIONS, RECORD, *READ)
    ),
    outputs=(
        HIDDENS,
        NUM_CODES,
        FINISH_REASON,
        CODES,
        REFINED_TEXT,
        WARNINGS,
        STEP_SECONDS,
        _always(RECORD),
    ),
)
VOCOS_DECODER = ModelSpec(
    "vocos_decoder",
    inputs=(HIDDENS, NUM_CODES, SEGMENT_SEED, *_JOINING, RECORD),
    outputs=(AUDIO, AUDIO_LENGTH, PCM16),
)
CHATTTS = ModelSpec(
    "chattts",
    inputs=(TEXT, *OPTIONS),
    outputs=(AUDIO, AUDIO_LENGTH, SEED_USED, FINISH_REASON, PCM16, REFINED_TEXT, WARNINGS),
)
CHATTTS_STREAM = ModelSpec(
    "chattts_stream",
    inputs=(TEXT, *OPTIONS, MODE),
    outputs=(
        AUDIO,
        PCM16,
        CHUNK_INDEX,
        SEED_USED,
        MODE_USED,
        FINISH_REASON,
        REFINED_TEXT,
        WARNINGS,
    ),
    is_stream=True,
)
