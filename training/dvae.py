"""Stage: the DVAE, which turns two mel frames into four codes and back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from chattts_triton.constants import N_MELS
from training.corpus import corpus_fingerprint, shard_path
from training.modules import Dims, Dvae
from training.trainer import Plan, Schedule, train

_CROP_FRAMES = 96
_BATCH = 12
_RMS_WEIGHT = 0.3
# The quantisers clip beyond 1.25, where no gradient leads back.
_FREE_RANGE = 1.3
_RANGE_WEIGHT = 0.5
_SPREAD = 0.8
_SPREAD_WEIGHT = 0.02


class DvaeStage(nn.Module):
    """L1 and root mean square of the copied log-mel, each bin in units of its own RMS."""

    def __init__(self, dims: Dims, corpus: Path, num_shards: int) -> None:
        super().__init__()
        self._mel = np.concatenate(
            [np.load(shard_path(corpus, shard))["mel"] for shard in range(num_shards)]
        )
        self.dvae = Dvae(dims)
        rms = np.sqrt(np.square(self._mel, dtype=np.float32).mean(axis=0))
        self.dvae.coef.copy_(torch.from_numpy(rms).view(1, N_MELS, 1))

    def batch(self, generator: torch.Generator, progress: float) -> Tensor:
        """Crops of the corpus: (12, 100, 96) float32 log-mel."""
        starts = torch.randint(len(self._mel) - _CROP_FRAMES, (_BATCH,), generator=generator)
        crops = np.stack([self._mel[start : start + _CROP_FRAMES] for start in starts.tolist()])
        return torch.from_numpy(crops).float().transpose(1, 2)

    def forward(self, mel: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Loss of the crops' copies."""
        mel = mel.to(self.dvae.coef.device)
        with torch.autocast(mel.device.type, torch.bfloat16):
            features = self.dvae.features(mel)
        # Rounding to codes is done as upstream does it, in float32.
        features = features.float()
        quantized, codes = self.dvae.quantize(features)
        activations = self.dvae.pre_activations(features)
        with torch.autocast(mel.device.type, torch.bfloat16):
            copy = self.dvae.decode(quantized)
        error = (copy.float() - mel) / self.dvae.coef
        copy_loss = error.abs().mean() + _RMS_WEIGHT * error.square().mean().sqrt()
        loss = copy_loss + _activation_loss(activations)
        num_used = codes[..., 0].unique().numel()
        return loss, {
            "l1": error.abs().mean().item(),
            "spread": activations.std().item(),
            "codes": num_used,
        }


def _activation_loss(activations: Tensor) -> Tensor:
    beyond = functional.relu(activations.abs() - _FREE_RANGE).square().mean()
    flat = activations.flatten(1, 2)  # (groups, B T, 4)
    spread = flat.mean(1).square().mean() + (flat.std(1) - _SPREAD).square().mean()
    return _RANGE_WEIGHT * beyond + _SPREAD_WEIGHT * spread


def train_dvae(corpus: Path, num_shards: int, schedule: Schedule, directory: Path) -> Dvae:
    """Train to the end of the schedule."""
    plan = Plan("dvae", schedule, corpus_fingerprint(corpus, num_shards), directory)
    stage = train(plan, partial(DvaeStage, Dims(), corpus, num_shards))
    assert isinstance(stage, DvaeStage)
    return stage.dvae
