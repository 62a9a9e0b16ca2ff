"""The trained parts as a checkpoint in the layout of ChatTTS, in float16, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chattts_triton.constants import N_FFT
from chattts_triton.export import checkpoint as layout
from chattts_triton.export.standin import gpt_config
from chattts_triton.export.tokenizer_standin import tokenizer_files
from chattts_triton.export.upstream import SPK_STAT
from chattts_triton.voices.book_file import write_entries
from chattts_triton.voices.entry import VoiceEntry
from chattts_triton.voices.packed_string import to_base16384
from chattts_triton.voices.speaker import encode_speaker
from training.corpus import mel_spectrogram
from training.gpt import GptStage
from training.modules import Dims, Dvae, Vocos
from training.speakers import speaker_vector, statistics
from training.teacher import VOICES

_UNUSED_ROWS = 32  # of an embedding that ChatTTS stores, loads and drops

_DESCRIPTIONS = {
    "slt": "A woman: flite's voice slt in English, a high voice of espeak-ng in Mandarin. "
    "Words of the demonstration only.",
    "rms": "A man: flite's voice rms in English, a low voice of espeak-ng in Mandarin. "
    "Words of the demonstration only.",
}

Tensors = dict[str, Tensor]


def write_checkpoint(dims: Dims, gpt: GptStage, dvae: Dvae, vocos: Vocos, out: Path) -> None:
    """Write `out/asset/` anew; what was there stays until the new one is complete."""
    staging = out / "asset.new"
    shutil.rmtree(staging, ignore_errors=True)
    mel = mel_spectrogram().state_dict()
    window = torch.hann_window(N_FFT)
    files = {
        layout.GPT: _halved(gpt.gpt)
        | {"embed_tokens.weight": torch.zeros(_UNUSED_ROWS, dims.hidden_size).half()},
        layout.EMBED: _halved(gpt.embed),
        layout.DECODER: _halved(gpt.decoder),
        layout.DVAE: _halved(dvae) | _below("preprocessor_mel.mel_spec", mel),
        layout.VOCOS: _halved(vocos)
        | _below("feature_extractor.mel_spec", mel)
        | {"head.istft.window": window},
    }
    for name, tensors in files.items():
        path = _staged(staging, name)
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
        path.chmod(0o644)  # safetensors makes files that only their owner may read
    config = gpt_config(dims, num_text_tokens=gpt.tokens.count, vocab_size=_UNUSED_ROWS)
    texts = {layout.GPT_CONFIG: json.dumps(config, indent=2) + "\n"}
    texts |= {
        f"asset/tokenizer/{name}": text
        for name, text in tokenizer_files(gpt.tokens.vocabulary).items()
    }
    packed = np.ascontiguousarray(statistics(dims.hidden_size)).tobytes()
    texts[SPK_STAT] = to_base16384(packed) + "\n"
    for name, text in texts.items():
        _staged(staging, name).write_text(text, encoding="utf-8")
    write_entries(_staged(staging, layout.VOICES), voices(dims.hidden_size))
    shutil.rmtree(out / "asset", ignore_errors=True)
    staging.rename(out / "asset")


def read_gpt(checkpoint: Path) -> Tensors:
    """What a `GptStage` has learned, by its names; the heads that only train are not shipped."""
    files = {"gpt": layout.GPT, "embed": layout.EMBED, "decoder": layout.DECODER}
    return {
        f"{part}.{name}": tensor.float()
        for part, file in files.items()
        for name, tensor in load_file(checkpoint / file).items()
        if name != "embed_tokens.weight"
    }


def read_module(checkpoint: Path, file: str, module: nn.Module) -> None:
    """Fill the DVAE or Vocos, ready for use."""
    tensors = load_file(checkpoint / file)
    module.load_state_dict({name: tensors[name].float() for name in module.state_dict()})
    module.eval()


def voices(hidden_size: int) -> dict[str, VoiceEntry]:
    """The teacher's voices as entries of a book of voices."""
    return {
        name: VoiceEntry(
            name,
            speaker=encode_speaker(speaker_vector(name, hidden_size)),
            description=_DESCRIPTIONS[name],
            language="any",
            tags=("demonstration",),
        )
        for name in VOICES
    }


def _halved(module: nn.Module) -> Tensors:
    """Parameters in float16; buffers are facts such as windows and stay as they are."""
    parameters = dict(module.named_parameters())
    return {
        name: tensor.detach().half() if name in parameters else tensor.detach().clone()
        for name, tensor in module.state_dict().items()
    }


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _staged(staging: Path, name: str) -> Path:
    path = staging / Path(name).relative_to("asset")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
