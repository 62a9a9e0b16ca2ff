"""Facts of ChatTTS that no checkpoint changes, each derived one computed from the others.

Shape letters used in this project: B batch, T text ids or code steps, F mel frames, S samples,
V vocabulary, L layers, H heads, D head size.
"""

from __future__ import annotations

SAMPLE_RATE_HZ = 24_000
N_FFT = 1024
HOP_SAMPLES = 256
N_MELS = 100
FRAMES_PER_CODE = 2
SAMPLES_PER_CODE = FRAMES_PER_CODE * HOP_SAMPLES  # 512 samples, 21.33 ms
CODES_PER_SECOND = SAMPLE_RATE_HZ / SAMPLES_PER_CODE  # 46.875

# Steps on either side that a step's samples depend on: 12 * 6 + 2 + 1 mel frames in the decoder and
# 3 + 8 * 3 + 2 in Vocos.
CONTEXT_CODES = 52
# What is decoded before a chunk where a few steps behind it are all that is known anyway: the
# further away a step is, the less it matters.
SHORT_CONTEXT_CODES = 16

NUM_VQ = 4  # codebooks drawn at every step
REPETITION_WINDOW_CODES = 16  # the repetition penalty looks back this far
MIN_CANDIDATES = 3  # top-p and top-k each keep at least this many

MAX_NEW_CODES = 2048
CAP_CODES_PER_CHARACTER = 28  # 0.6 s a character ...
CAP_CODES_BASE = 94  # ... and 2 s for the text as a whole

MIN_SPEED = 0
MAX_SPEED = 9
DEFAULT_SPEED = 5


def num_audio_samples(num_codes: int) -> int:
    """Samples that `num_codes` steps decode to: F frames give (F - 1) * 256 with centre padding."""
    return (FRAMES_PER_CODE * num_codes - 1) * HOP_SAMPLES if num_codes > 0 else 0


def default_max_new_codes(num_characters: int) -> int:
    """The cap on steps for a text of so many characters, where the caller sets none."""
    return min(MAX_NEW_CODES, CAP_CODES_PER_CHARACTER * num_characters + CAP_CODES_BASE)
