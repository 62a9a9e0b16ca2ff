"""Stage: Vocos, from log-mel spectrograms to the teacher's waveform, without a discriminator."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from chattts_triton.constants import HOP_SAMPLES
from training.corpus import MIN_MEL, corpus_fingerprint, mel_spectrogram, shard_path
from training.modules import Dims, Vocos
from training.trainer import Plan, Schedule, train

_CROP_SAMPLES = 64 * HOP_SAMPLES
_BATCH = 12
_FFT_SIZES = (512, 1024, 2048)
_MEL_WEIGHT = 1.5


class VocosStage(nn.Module):
    """Log-mel L1 and the distance of three spectrograms of different resolution."""

    def __init__(self, dims: Dims, corpus: Path, num_shards: int) -> None:
        super().__init__()
        self.vocos = Vocos(dims)
        self._mel = mel_spectrogram()
        self._audio = np.concatenate(
            [np.load(shard_path(corpus, shard))["audio"] for shard in range(num_shards)]
        )

    def batch(self, generator: torch.Generator, progress: float) -> Tensor:
        """Crops of the corpus: (12, 16384) float32."""
        starts = torch.randint(len(self._audio) - _CROP_SAMPLES, (_BATCH,), generator=generator)
        crops = np.stack([self._audio[start : start + _CROP_SAMPLES] for start in starts.tolist()])
        return torch.from_numpy(crops).float() / 32767

    def forward(self, audio: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Loss of the crops' copies."""
        audio = audio.to(self.vocos.window.device)
        mel = self._log_mel(audio)
        with torch.autocast(audio.device.type, torch.bfloat16):
            copy = self.vocos(mel)
        mel_loss = functional.l1_loss(self._log_mel(copy), mel)
        spectral_loss = torch.stack([_spectral_loss(copy, audio, size) for size in _FFT_SIZES])
        loss = _MEL_WEIGHT * mel_loss + spectral_loss.mean()
        return loss, {"mel": mel_loss.item(), "spectral": spectral_loss.mean().item()}

    def _log_mel(self, audio: Tensor) -> Tensor:
        return self._mel.to(audio.device)(audio).clamp(min=MIN_MEL).log()


def _spectral_loss(copy: Tensor, audio: Tensor, size: int) -> Tensor:
    window = torch.hann_window(size, device=audio.device)
    copied, wanted = (
        torch.stft(x, size, size // 4, window=window, return_complex=True).abs()
        for x in (copy, audio)
    )
    convergence = (copied - wanted).norm() / wanted.norm().clamp(min=1e-3)
    magnitude = functional.l1_loss(copied.clamp(min=MIN_MEL).log(), wanted.clamp(min=MIN_MEL).log())
    return convergence + magnitude


def train_vocos(corpus: Path, num_shards: int, schedule: Schedule, directory: Path) -> Vocos:
    """Train to the end of the schedule on the shards that keep their audio."""
    plan = Plan("vocos", schedule, corpus_fingerprint(corpus, num_shards), directory)
    stage = train(plan, partial(VocosStage, Dims(), corpus, num_shards))
    assert isinstance(stage, VocosStage)
    return stage.vocos
