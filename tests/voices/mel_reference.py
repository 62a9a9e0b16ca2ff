"""The logarithmic mel spectrum of a fixed signal, from the formulas alone: plain sums in float64.

`python tests/voices/mel_reference.py` writes mel_reference.npy beside this file.

torchaudio's MelSpectrogram(24000, n_fft=1024, hop_length=256, n_mels=100, power=1): a periodic Hann
window, frames centred over the mirrored signal, magnitudes, triangular filters of height 1 evenly
spaced on the HTK mel scale; then the logarithm, of 1e-5 at least.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_name("mel_reference.npy")
NUM_SAMPLES = 6000


def fixed_signal() -> npt.NDArray[np.float32]:
    """(S,) float32: a rising tone over noise of a linear congruential generator."""
    state, noise = 1, []
    for _ in range(NUM_SAMPLES):
        state = (1103515245 * state + 12345) % 2**31
        noise.append(state / 2**30 - 1)
    time_s = np.arange(NUM_SAMPLES) / 24_000
    tone = np.sin(2 * np.pi * (200 + 8000 * time_s) * time_s)
    return (0.4 * tone + 0.05 * np.array(noise)).astype(np.float32)


def mel_filter(index: int, frequency_hz: float) -> float:
    """Weight of a frequency in one of the 100 filters."""
    top = 2595 * np.log10(1 + 12_000 / 700)
    left, centre, right = (
        700 * (10 ** (top * (index + offset) / 101 / 2595) - 1) for offset in range(3)
    )
    rising = (frequency_hz - left) / (centre - left)
    falling = (right - frequency_hz) / (right - centre)
    return max(0.0, min(rising, falling))


def log_mel(signal: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(S,) to (100, F), F = S // 256 + 1."""
    middle = signal.astype(np.float64)
    mirrored = np.concatenate([middle[512:0:-1], middle, middle[-2:-514:-1]])
    position = np.arange(1024)
    window = np.sin(np.pi * position / 1024) ** 2
    waves = np.exp(-2j * np.pi * np.outer(np.arange(513), position) / 1024)
    filters = [
        [mel_filter(index, bin_ * 24_000 / 1024) for bin_ in range(513)] for index in range(100)
    ]
    columns = []
    for frame in range(len(signal) // 256 + 1):
        magnitudes = np.abs(waves @ (window * mirrored[256 * frame : 256 * frame + 1024]))
        columns.append(np.log(np.maximum(np.array(filters) @ magnitudes, 1e-5)))
    return np.stack(columns, axis=1)


if __name__ == "__main__":
    np.save(FILE, log_mel(fixed_signal()).astype(np.float32))
