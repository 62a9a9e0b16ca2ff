"""The fundamental frequency of speech, by autocorrelation: enough to tell two voices apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MIN_HZ, MAX_HZ = 60.0, 400.0
_WINDOW_S = 0.05
_HOP_S = 0.01
# A frame counts as voiced if it is so loud, in shares of the loudest, and repeats itself so well.
_MIN_LEVEL = 0.1
_MIN_PERIODICITY = 0.6
# Twice the period repeats as well as the period: the shortest lag that is nearly best is taken.
_NEARLY_BEST = 0.9


def pitch_hz(audio: npt.NDArray[np.float32], sample_rate_hz: int) -> FloatArray:
    """The frequency of each voiced frame of 10 ms: (N,), empty where nothing is voiced.

    Source:
        Boersma, "Accurate short-term analysis of the fundamental frequency" (1993): the
        autocorrelation is divided by that of the window.
    """
    frames = _frames(audio, round(_WINDOW_S * sample_rate_hz), round(_HOP_S * sample_rate_hz))
    if not len(frames):
        return np.zeros(0)
    levels = np.sqrt(np.square(frames).mean(axis=1))
    frames = frames[levels >= max(_MIN_LEVEL * levels.max(), 1e-6)]
    window = np.hanning(frames.shape[1])
    repeats = _autocorrelation(frames * window) / _autocorrelation(window[None])
    shortest, longest = (round(sample_rate_hz / limit) for limit in (MAX_HZ, MIN_HZ))
    found = [_period(row, shortest, longest) for row in repeats]
    return sample_rate_hz / np.array([period for period in found if period])


def _frames(audio: npt.NDArray[np.float32], length: int, hop: int) -> FloatArray:
    if len(audio) < length:
        return np.zeros((0, length))
    windows = np.lib.stride_tricks.sliding_window_view(audio.astype(np.float64), length)[::hop]
    return np.asarray(windows - windows.mean(axis=1, keepdims=True))


def _autocorrelation(frames: FloatArray) -> FloatArray:
    """Of each row at the lags 0 and up, 1 at lag 0."""
    length = frames.shape[1]
    power = np.square(np.abs(np.fft.rfft(frames, 2 * length)))
    sums = np.fft.irfft(power)[:, :length]
    return np.asarray(sums / sums[:, :1])


def _period(repeats: FloatArray, shortest: int, longest: int) -> float | None:
    """Samples between repetitions; None in a frame that is not voiced."""
    lags = np.arange(shortest, longest + 1)
    before, here, after = (repeats[lags + step] for step in (-1, 0, 1))
    peaks = (here > before) & (here >= after) & (here >= _MIN_PERIODICITY)
    if not peaks.any():
        return None
    return float(lags[peaks & (here >= _NEARLY_BEST * here[peaks].max())][0])
