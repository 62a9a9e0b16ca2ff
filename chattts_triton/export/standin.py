"""Writes a checkpoint of random weights in the exact layout of ChatTTS: noise instead of speech.

The scales are chosen so that it behaves like a trained model where that matters for tests: codes
depend on text, voice and seed, the end code comes at a natural rate, every layer counts, and the
audio is finite and neither silent nor clipped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tqdm import tqdm

from chattts_triton.constants import N_FFT, N_MELS, NUM_VQ, SAMPLE_RATE_HZ
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export import checkpoint
from chattts_triton.export.mel_spectrogram import mel_filterbank
from chattts_triton.export.tokenizer_standin import tokenizer_files
from chattts_triton.sampling_params import MAX_SEED

NUM_TEXT_TOKENS = 21178
NUM_AUDIO_TOKENS = 626
DVAE_LEVELS = 4  # each of 5 values: 5 ** 4 codes and the end code
DVAE_GROUPS = 2
END_CODE_MAGNITUDE = 1.93

Tensors = dict[str, torch.Tensor]


class GptDims(Protocol):
    """The dims that `gpt/config.json` tells."""

    @property
    def hidden_size(self) -> int: ...  # noqa: D102
    @property
    def intermediate_size(self) -> int: ...  # noqa: D102
    @property
    def num_layers(self) -> int: ...  # noqa: D102
    @property
    def num_heads(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class StandinDims:
    """The dims of one size; the defaults are those of the published weights."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_layers: int = 20
    num_heads: int = 12
    vocab_size: int = 32000  # rows of an embedding that ChatTTS stores, loads and drops
    decoder_hidden: int = 512
    decoder_layers: int = 12
    decoder_bn: int = 128
    dvae_dim: int = 512
    dvae_hidden: int = 256
    dvae_layers: int = 12
    dvae_bn: int = 128
    vocos_dim: int = 512
    vocos_intermediate: int = 1536
    vocos_layers: int = 8


SIZES = {
    "full": StandinDims(),
    "tiny": StandinDims(
        intermediate_size=256,
        num_layers=2,
        vocab_size=32,
        decoder_hidden=64,
        decoder_layers=3,
        decoder_bn=32,
        dvae_dim=64,
        dvae_hidden=64,
        dvae_layers=2,
        dvae_bn=32,
        vocos_dim=96,
        vocos_intermediate=192,
        vocos_layers=3,
    ),
}


def write_standin(size: str, out: Path, seed: int = 0) -> None:
    """Write `out/asset/`; one that is already there is replaced once the new one is complete.

    Args:
        size: `full` or `tiny`.
        out: The checkpoint's directory, made where it is missing.
        seed: 0 to 2**63 - 1; the same seed gives the same bytes.

    Raises:
        InvalidRequestError: No such size, or the seed is out of range.
        ModelLoadError: The directory cannot be written or the disk is full; nothing is left of it.
    """
    if size not in SIZES:
        raise InvalidRequestError.of("size", size, " or ".join(sorted(SIZES)))
    if not 0 <= seed <= MAX_SEED:
        raise InvalidRequestError.of("seed", seed, f"0 to {MAX_SEED}")
    dims = SIZES[size]
    total_bytes = sum(
        tensor.numel() * tensor.element_size()
        for _, tensors in checkpoint_tensors(dims, seed, device="meta")
        for tensor in tensors.values()
    )
    try:
        with (
            _replacing(out / "asset") as staging,
            tqdm(
                total=total_bytes, desc=f"stand-in ({size})", unit="B", unit_scale=True, delay=1.0
            ) as progress,
        ):
            _write_texts(dims, staging)
            for name, tensors in checkpoint_tensors(dims, seed, on_bytes=progress.update):
                save_file(tensors, _below(staging, name), metadata={"format": "pt"})
                # safetensors makes files that only their owner may read.
                shutil.copymode(staging / "gpt" / "config.json", _below(staging, name))
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{out}: cannot write the stand-in checkpoint: {error}") from error


def checkpoint_tensors(
    dims: StandinDims,
    seed: int,
    device: str = "cpu",
    on_bytes: Callable[[int], object] | None = None,
) -> Iterator[tuple[str, Tensors]]:
    """Each safetensors file's name in the layout with its tensors, one file after the other.

    Args:
        dims: The dims to build.
        seed: Of the generator that all files are drawn from, in order.
        device: `meta` gives shapes without values.
        on_bytes: Called with the size of every tensor as soon as it is drawn.
    """
    draw = _Draw(device, seed, on_bytes)
    yield checkpoint.GPT, _gpt(dims, draw)
    yield checkpoint.EMBED, _embed(dims, draw)
    coef = draw.normal(1, N_MELS, 1, std=0.1, mean=1.0)  # deviation of each mel bin
    yield checkpoint.DECODER, _decoder(dims, draw) | {"coef": coef}
    yield checkpoint.DVAE, _dvae(dims, draw) | {"coef": coef}
    yield checkpoint.VOCOS, _vocos(dims, draw)


class _Draw:
    """Random float32 tensors from one generator of its own, or only their shapes."""

    def __init__(self, device: str, seed: int, on_bytes: Callable[[int], object] | None) -> None:
        self._device = device
        self._on_bytes = on_bytes
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float, mean: float = 0.0) -> torch.Tensor:
        return self._made(
            torch.empty(shape, device=self._device),
            lambda tensor: tensor.normal_(mean, std, generator=self._generator),
        )

    def uniform(self, *shape: int, low: float, high: float) -> torch.Tensor:
        return self._made(
            torch.empty(shape, device=self._device),
            lambda tensor: tensor.uniform_(low, high, generator=self._generator),
        )

    def fixed(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._made(tensor.to(self._device, torch.float32).contiguous(), lambda same: same)

    def gains(self, size: int, mean: float = 1.0) -> torch.Tensor:
        return self.normal(size, std=0.1 * mean, mean=mean)

    def linear(self, num_out: int, num_in: int, *kernel: int, gain: float = 1.0) -> torch.Tensor:
        """A weight whose outputs have a deviation of `gain` for inputs of deviation 1."""
        fan_in = num_in * math.prod(kernel)
        return self.normal(num_out, num_in, *kernel, std=gain / math.sqrt(fan_in))

    def bias(self, size: int) -> torch.Tensor:
        return self.normal(size, std=0.1)

    def _made(
        self, tensor: torch.Tensor, fill: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        filled = fill(tensor)
        if self._on_bytes is not None:
            self._on_bytes(filled.numel() * filled.element_size())
        return filled


def _gpt(dims: StandinDims, draw: _Draw) -> Tensors:
    hidden, inner = dims.hidden_size, dims.intermediate_size
    # A speaker vector enters with norm 1, so that is the unit of the residual stream: embeddings
    # bring one, and the layers together about as much. What MLPs add is independent from layer to
    # layer; what attention adds has a part in common, so it falls faster with the depth, lest the
    # hidden states of all steps become one.
    unit = 1.0 / math.sqrt(hidden)
    mlp_gain = unit * dims.num_layers**-0.5
    attention_gain = 1.8 * unit * dims.num_layers**-0.75
    tensors = {"embed_tokens.weight": draw.normal(dims.vocab_size, hidden, std=0.02)}
    for i in range(dims.num_layers):
        layer = {
            "input_layernorm.weight": draw.gains(hidden),
            # Scores of deviation 1.4: attention picks, without picking one position only.
            "self_attn.q_proj.weight": draw.linear(hidden, hidden, gain=1.2),
            "self_attn.k_proj.weight": draw.linear(hidden, hidden, gain=1.2),
            "self_attn.v_proj.weight": draw.linear(hidden, hidden),
            # Averaging over positions leaves about 0.4 of the values' deviation.
            "self_attn.o_proj.weight": draw.linear(hidden, hidden, gain=attention_gain / 0.4),
            "post_attention_layernorm.weight": draw.gains(hidden),
            "mlp.gate_proj.weight": draw.linear(inner, hidden),
            "mlp.up_proj.weight": draw.linear(inner, hidden),
            # silu(x) * y has a deviation of 0.6 for x and y of deviation 1.
            "mlp.down_proj.weight": draw.linear(hidden, inner, gain=mlp_gain / 0.6),
        }
        tensors |= {f"layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return tensors | {"norm.weight": draw.gains(hidden)}


def _embed(dims: StandinDims, draw: _Draw) -> Tensors:
    hidden = dims.hidden_size
    std = 1.0 / math.sqrt(hidden)
    tensors = {"emb_text.weight": draw.normal(NUM_TEXT_TOKENS, hidden, std=std)}
    tensors |= _head("head_text", NUM_TEXT_TOKENS, hidden, draw)
    for i in range(NUM_VQ):
        tensors[f"emb_code.{i}.weight"] = draw.normal(
            NUM_AUDIO_TOKENS, hidden, std=std / math.sqrt(NUM_VQ)
        )
        tensors |= _head(f"head_code.{i}", NUM_AUDIO_TOKENS, hidden, draw)
        # As likely as any code, the end code would come after 100 steps; this makes it about 200.
        tensors[f"head_code.{i}.parametrizations.weight.original0"][-1] = END_CODE_MAGNITUDE
    return tensors


def _head(name: str, num_out: int, hidden: int, draw: _Draw) -> Tensors:
    """A weight-normed linear layer; its magnitudes are the deviations of the logits."""
    prefix = f"{name}.parametrizations.weight"
    return {
        f"{prefix}.original0": draw.normal(num_out, 1, std=0.05, mean=2.0),
        f"{prefix}.original1": draw.normal(num_out, hidden, std=0.05),
    }


def _decoder(dims: StandinDims, draw: _Draw) -> Tensors:
    half = dims.hidden_size // 2  # one step's hidden state is two mel frames side by side
    return {
        **_conv_stack(
            "decoder", draw, half, half, dims.decoder_hidden, dims.decoder_layers, dims.decoder_bn
        ),
        "out_conv.weight": draw.linear(N_MELS, half, 3),
    }


def _dvae(dims: StandinDims, draw: _Draw) -> Tensors:
    dim = dims.dvae_dim
    stack = (dims.dvae_hidden, dims.dvae_layers, dims.dvae_bn)
    tensors = {
        "downsample_conv.0.weight": draw.linear(dim, N_MELS, 3, gain=0.5),
        "downsample_conv.0.bias": draw.bias(dim),
        "downsample_conv.2.weight": draw.linear(dim, dim, 4),
        "downsample_conv.2.bias": draw.bias(dim),
        "preprocessor_mel.mel_spec.spectrogram.window": draw.fixed(torch.hann_window(N_FFT)),
        "preprocessor_mel.mel_spec.mel_scale.fb": draw.fixed(
            mel_filterbank(SAMPLE_RATE_HZ, N_FFT, N_MELS)
        ),
        **_conv_stack("encoder", draw, dim, 2 * dim, *stack),
        **_conv_stack("decoder", draw, dim, dim, *stack),
        "out_conv.weight": draw.linear(N_MELS, dim, 3),
    }
    group_dim = 2 * dim // DVAE_GROUPS
    for i in range(DVAE_GROUPS):
        prefix = f"vq_layer.quantizer.rvqs.{i}"
        tensors |= {
            f"{prefix}.project_in.weight": draw.linear(DVAE_LEVELS, group_dim, gain=0.7),
            f"{prefix}.project_in.bias": draw.bias(DVAE_LEVELS),
            f"{prefix}.project_out.weight": draw.linear(group_dim, DVAE_LEVELS),
            f"{prefix}.project_out.bias": draw.bias(group_dim),
        }
    return tensors


def _conv_stack(
    prefix: str,
    draw: _Draw,
    num_in: int,
    num_out: int,
    hidden: int,
    num_layers: int,
    bottleneck: int,
) -> Tensors:
    """The body that ChatTTS's decoder, DVAE decoder and DVAE encoder share."""
    tensors = {
        "conv_in.0.weight": draw.linear(bottleneck, num_in, 3),
        "conv_in.0.bias": draw.bias(bottleneck),
        # GELU leaves about 0.6 of the deviation.
        "conv_in.2.weight": draw.linear(hidden, bottleneck, 3, gain=1.0 / 0.6),
        "conv_in.2.bias": draw.bias(hidden),
        "conv_out.weight": draw.linear(num_out, hidden, 1),
    }
    for i in range(num_layers):
        block = _convnext_block(draw, hidden, 4 * hidden, "weight")
        tensors |= {f"decoder_block.{i}.{name}": tensor for name, tensor in block.items()}
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _vocos(dims: StandinDims, draw: _Draw) -> Tensors:
    dim = dims.vocos_dim
    num_bins = N_FFT // 2 + 1
    # Magnitudes fall by e ** -4 from 0 Hz to 12 kHz and add up to an RMS of about 0.1; phases
    # are spread over the whole circle.
    log_magnitude = draw.fixed(torch.linspace(2.0, -2.0, num_bins))
    phase = draw.uniform(num_bins, low=-math.pi, high=math.pi)
    tensors = {
        "feature_extractor.mel_spec.spectrogram.window": draw.fixed(torch.hann_window(N_FFT)),
        "feature_extractor.mel_spec.mel_scale.fb": draw.fixed(
            mel_filterbank(SAMPLE_RATE_HZ, N_FFT, N_MELS)
        ),
        "backbone.embed.weight": draw.linear(dim, N_MELS, 7),
        "backbone.embed.bias": draw.bias(dim),
        "backbone.norm.weight": draw.gains(dim),
        "backbone.norm.bias": draw.bias(dim),
        "backbone.final_layer_norm.weight": draw.gains(dim),
        "backbone.final_layer_norm.bias": draw.bias(dim),
        "head.out.weight": torch.cat(
            [draw.linear(num_bins, dim, gain=0.5), draw.linear(num_bins, dim, gain=2.0)]
        ),
        "head.out.bias": torch.cat([log_magnitude, phase]),
        "head.istft.window": draw.fixed(torch.hann_window(N_FFT)),
    }
    for i in range(dims.vocos_layers):
        block = _convnext_block(draw, dim, dims.vocos_intermediate, "gamma")
        tensors |= {f"backbone.convnext.{i}.{name}": tensor for name, tensor in block.items()}
    return tensors


def _convnext_block(draw: _Draw, dim: int, intermediate: int, scale_name: str) -> Tensors:
    return {
        "dwconv.weight": draw.linear(dim, 1, 7),
        "dwconv.bias": draw.bias(dim),
        "norm.weight": draw.gains(dim),
        "norm.bias": draw.bias(dim),
        "pwconv1.weight": draw.linear(intermediate, dim),
        "pwconv1.bias": draw.bias(intermediate),
        "pwconv2.weight": draw.linear(dim, intermediate, gain=1.0 / 0.6),
        "pwconv2.bias": draw.bias(dim),
        scale_name: draw.gains(dim, mean=0.3),
    }


def gpt_config(dims: GptDims, num_text_tokens: int, vocab_size: int) -> dict[str, object]:
    """What `gpt/config.json` holds."""
    return {
        "architectures": ["LlamaModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": dims.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": dims.intermediate_size,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": dims.num_heads,
        "num_audio_tokens": NUM_AUDIO_TOKENS,
        "num_hidden_layers": dims.num_layers,
        "num_key_value_heads": dims.num_heads,
        "num_text_tokens": num_text_tokens,
        "num_vq": NUM_VQ,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "spk_KL": False,
        "spk_emb_dim": 192,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.41.2",
        "use_cache": False,
        "vocab_size": vocab_size,
    }


def _write_texts(dims: StandinDims, staging: Path) -> None:
    config = json.dumps(gpt_config(dims, NUM_TEXT_TOKENS, dims.vocab_size), indent=2) + "\n"
    _below(staging, checkpoint.GPT_CONFIG).write_text(config, encoding="utf-8")
    for name, content in tokenizer_files().items():
        _below(staging, f"asset/tokenizer/{name}").write_text(content, encoding="utf-8")


def _below(staging: Path, name: str) -> Path:
    """Where the file of that name in the layout goes, its directory made."""
    path = staging / Path(name).relative_to("asset")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """An empty directory that takes `target`'s place if the block succeeds, else vanishes."""
    parent_is_new = not target.parent.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".standin-", dir=target.parent))
    try:
        staging = work / "new"
        staging.mkdir()  # not mkdtemp itself, which only its owner may enter
        yield staging
        if os.path.lexists(target):
            target.rename(work / "old")
        staging.rename(target)
    except BaseException:
        if os.path.lexists(work / "old"):
            (work / "old").rename(target)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if parent_is_new and not any(target.parent.iterdir()):
            target.parent.rmdir()
