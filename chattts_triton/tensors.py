"""Every tensor of every model, declared once; a test holds each config.pbtxt against this file."""

from __future__ import annotations

from dataclasses import dataclass

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
)

AUDIO = TensorSpec("AUDIO", "FP32", (-1,))
AUDIO_LENGTH = TensorSpec("AUDIO_LENGTH", "INT64", (1,))
PCM16 = TensorSpec("PCM16", "INT16", (-1,))
SEED_USED = TensorSpec("SEED_USED", "INT64", (1,))
FINISH_REASON = TensorSpec("FINISH_REASON", "STRING", (1,))

# Between the members. Every row of a padded tensor says in a NUM_ tensor how much of it counts.
TEXT_IDS = TensorSpec("TEXT_IDS", "INT32", (-1,))
NUM_TEXT_IDS = TensorSpec("NUM_TEXT_IDS", "INT32", (1,))
SPEAKER_EMBEDDING = TensorSpec("SPEAKER_EMBEDDING", "FP32", (-1,))
SAMPLING_SEED = TensorSpec("SEED", "INT64", (1,))
SAMPLING_TEMPERATURE = TensorSpec("TEMPERATURE", "FP32", (1,))
SAMPLING_TOP_P = TensorSpec("TOP_P", "FP32", (1,))
SAMPLING_TOP_K = TensorSpec("TOP_K", "INT32", (1,))
SAMPLING_REPETITION_PENALTY = TensorSpec("REPETITION_PENALTY", "FP32", (1,))
MAX_NEW_CODES = TensorSpec("MAX_NEW_CODES", "INT32", (1,))
HIDDENS = TensorSpec("HIDDENS", "FP32", (-1, -1))
CODES = TensorSpec("CODES", "INT32", (-1, -1))
NUM_CODES = TensorSpec("NUM_CODES", "INT32", (1,))

_SAMPLING = (
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    SAMPLING_TOP_K,
    SAMPLING_REPETITION_PENALTY,
    MAX_NEW_CODES,
)

PREPROCESS = ModelSpec(
    "preprocess",
    inputs=(TEXT, *OPTIONS),
    # The seed comes out twice, since Triton cannot be asked for an ensemble output alone that
    # another member reads (B-76): SEED_USED is for the caller, SEED for the members.
    outputs=(TEXT_IDS, NUM_TEXT_IDS, SPEAKER_EMBEDDING, SEED_USED, SAMPLING_SEED, *_SAMPLING),
)
GPT = ModelSpec(
    "gpt",
    inputs=(TEXT_IDS, NUM_TEXT_IDS, SPEAKER_EMBEDDING, SAMPLING_SEED, *_SAMPLING),
    outputs=(HIDDENS, NUM_CODES, FINISH_REASON, CODES),
)
VOCOS_DECODER = ModelSpec(
    "vocos_decoder",
    inputs=(HIDDENS, NUM_CODES, SAMPLING_SEED),
    outputs=(AUDIO, AUDIO_LENGTH, PCM16),
)
CHATTTS = ModelSpec(
    "chattts",
    inputs=(TEXT, *OPTIONS),
    outputs=(AUDIO, AUDIO_LENGTH, SEED_USED, FINISH_REASON, PCM16),
)
