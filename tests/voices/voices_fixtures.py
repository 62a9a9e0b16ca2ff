"""Small books, strings and signals that the tests of voices share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.voices.prompt_codes import NUM_SPOKEN_CODES, encode_prompt_codes

HIDDEN_SIZE = 48
FULL_SIZE = 768
RATE_HZ = 24_000

Floats = npt.NDArray[np.float32]


def random_codes(num_codes: int, seed: int = 0) -> npt.NDArray[np.int32]:
    random = np.random.default_rng(seed)
    return random.integers(0, NUM_SPOKEN_CODES, (num_codes, 4), dtype=np.int32)


SAMPLE_STRING = encode_prompt_codes(random_codes(100))


def speech_like(duration_s: float, rate_hz: int = RATE_HZ) -> Floats:
    """A gliding tone with overtones, syllables and a little noise; (S,) float32 below 0.5."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    phase = 2 * np.pi * (140 * time_s + 9 * np.sin(2 * np.pi * 1.1 * time_s))
    voiced = sum(np.sin(order * phase) / order for order in range(1, 12))
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 3.7 * time_s)
    noise = np.random.default_rng(0).standard_normal(len(time_s))
    return (0.1 * syllables * voiced + 0.01 * noise).astype(np.float32)


def write_book(path: Path, voices: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"voices": voices}), encoding="utf-8")
    return path
