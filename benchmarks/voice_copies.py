"""Copy-synthesis: the teacher's own mel spectrogram through parts of the model, without its GPT.

What Vocos and the DVAE lose is lost before a word is chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import nn

from chattts_triton.export import checkpoint as layout
from training.corpus import log_mel
from training.modules import Dims, Dvae, Vocos

Audio = npt.NDArray[np.float32]
Module = TypeVar("Module", bound=nn.Module)


class CopySynthesis:
    """Vocos and the DVAE of a checkpoint that was trained with the sizes of `Dims`."""

    def __init__(self, checkpoint: Path) -> None:
        self._vocos = _loaded(Vocos(Dims()), checkpoint / layout.VOCOS)
        self._dvae = _loaded(Dvae(Dims()), checkpoint / layout.DVAE)

    @torch.no_grad()
    def through_vocos(self, audio: Audio) -> Audio:
        """(S,) samples, S a multiple of 512, to (S - 256,)."""
        return _first_row(self._vocos(_mel(audio)))

    @torch.no_grad()
    def through_codes(self, audio: Audio) -> Audio:
        """The same by way of the four codes a step, and then Vocos."""
        quantized, _ = self._dvae.quantize(self._dvae.features(_mel(audio)))
        return _first_row(self._vocos(self._dvae.decode(quantized)))


def _loaded(module: Module, path: Path) -> Module:
    tensors = load_file(path)
    # The file has the mel front end of upstream's layout as well.
    module.load_state_dict({name: tensors[name].float() for name in module.state_dict()})
    return module.eval()


def _mel(audio: Audio) -> torch.Tensor:
    return torch.from_numpy(log_mel(audio)).T[None]


def _first_row(audio: torch.Tensor) -> Audio:
    row: Audio = audio[0].clamp(-1, 1).numpy()
    return row
