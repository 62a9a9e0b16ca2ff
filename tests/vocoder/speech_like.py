"""A stand-in for the waveform graph with a smooth voice, in which a hard cut would be heard."""

from __future__ import annotations

import numpy as np

from chattts_triton.constants import (
    CONTEXT_CODES,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_CODE,
    num_audio_samples,
)

PITCH_HZ = 120.0
HARMONICS = (0.2, 0.1, 0.07, 0.04)
ERROR = 0.3
ERROR_HZ = 35.0
ERROR_FADES_CODES = 5.0


def step_numbers(num_codes: int) -> np.ndarray:
    """Hidden states (T, 2) float32 that say which step they are of."""
    return np.arange(2 * num_codes, dtype=np.float32).reshape(num_codes, 2) // 2


def decode_speech(hiddens: np.ndarray) -> np.ndarray:
    """A sum of harmonics, and towards either end of the window a slow error, as padding makes it.

    A sample is the same in any window that holds 52 steps to either side of it.
    """
    first = int(hiddens[0, 0])
    sample = SAMPLES_PER_CODE * first + np.arange(num_audio_samples(len(hiddens)))
    time_s = sample / SAMPLE_RATE_HZ
    glide = PITCH_HZ * time_s + 2.0 * np.sin(5.0 * time_s)  # cycles
    voice = sum(
        level * np.sin(2 * np.pi * (k + 1) * glide + k) for k, level in enumerate(HARMONICS)
    )
    ends = SAMPLES_PER_CODE * np.array([[first], [first + len(hiddens)]])
    distance_codes = np.abs(sample - ends) / SAMPLES_PER_CODE
    nearness = np.exp(-distance_codes / ERROR_FADES_CODES) * (distance_codes < CONTEXT_CODES)
    error = ERROR * (0.8 + 0.2 * np.cos(2 * np.pi * ERROR_HZ * time_s)) * nearness.sum(axis=0)
    return (voice + error).astype(np.float32)
