"""The one class of torchaudio that ChatTTS and vocos build, written from its formula.

PyPI's torchaudio needs a CUDA torch and cannot be imported beside a CPU build. The names of the
buffers are those that a checkpoint stores, so this file knows the checkpoint's layout and no model.
"""

from __future__ import annotations

import math

import torch


def hz_to_mel(hz: float) -> float:
    """A frequency on the HTK mel scale."""
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def mel_to_hz(mels: torch.Tensor) -> torch.Tensor:
    """The inverse of `hz_to_mel`, elementwise, as a new tensor."""
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)


def mel_filterbank(sample_rate: int, n_fft: int, n_mels: int) -> torch.Tensor:
    """Triangular filters, evenly spaced on the mel scale from 0 Hz to half the sample rate.

    Returns:
        (n_fft // 2 + 1, n_mels) float32; every filter peaks at 1 (no area normalisation).
    """
    nyquist_hz = sample_rate // 2
    bins_hz = torch.linspace(0, nyquist_hz, n_fft // 2 + 1)
    edges_hz = mel_to_hz(torch.linspace(0.0, hz_to_mel(nyquist_hz), n_mels + 2))
    widths_hz = edges_hz.diff()
    offsets_hz = edges_hz.unsqueeze(0) - bins_hz.unsqueeze(1)  # (bins, n_mels + 2)
    rising = -offsets_hz[:, :-2] / widths_hz[:-1]
    falling = offsets_hz[:, 2:] / widths_hz[1:]
    return torch.minimum(rising, falling).clamp(min=0.0)


class _Spectrogram(torch.nn.Module):
    window: torch.Tensor

    def __init__(self, n_fft: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(n_fft))


class _MelScale(torch.nn.Module):
    fb: torch.Tensor

    def __init__(self, filterbank: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("fb", filterbank)


class MelSpectrogram(torch.nn.Module):
    """Magnitudes of the short-time Fourier transform, summed under mel filters.

    Raises:
        ValueError: `power` is not 1; nothing here needs another.
    """

    def __init__(
        self,
        sample_rate: int,
        n_fft: int,
        hop_length: int,
        n_mels: int,
        center: bool = True,
        power: float = 1.0,
    ) -> None:
        super().__init__()
        if power != 1:
            raise ValueError(f"power: got {power}, wanted 1")
        self.n_fft = n_fft
        self.win_length = n_fft
        self.hop_length = hop_length
        self.center = center
        self.spectrogram = _Spectrogram(n_fft)
        self.mel_scale = _MelScale(mel_filterbank(sample_rate, n_fft, n_mels))

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """(..., S) float32 samples to (..., n_mels, F), F = S // hop_length + 1 where centred."""
        spectrum = torch.stft(
            audio.reshape(-1, audio.shape[-1]),
            self.n_fft,
            self.hop_length,
            window=self.spectrogram.window,
            center=self.center,
            pad_mode="reflect",
            return_complex=True,
        )
        mel = self.mel_scale.fb.T @ spectrum.abs()
        return mel.reshape(audio.shape[:-1] + mel.shape[-2:])
