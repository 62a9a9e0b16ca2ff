"""The networks of ChatTTS in a form that can be trained, their parameters named as in its layout.

Shapes are (B, C, F) for mel spectrograms and (B, T, H) for everything that follows the codes; one
code is two mel frames. What they compute is what upstream computes from the same tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from vector_quantize_pytorch import GroupedResidualFSQ

from chattts_triton.constants import HOP_SAMPLES, N_FFT, N_MELS, NUM_VQ

LEVELS = (5, 5, 5, 5)
GROUPS = 2
NUM_CODES = math.prod(LEVELS)
END_CODE = NUM_CODES
# Upstream's start at 1e-6; with so few steps the layers would still be shut at the end.
_LAYER_SCALE = 0.3


@dataclass(frozen=True)
class Dims:
    """Sizes of the demonstration voice; about 12 million parameters in all."""

    hidden_size: int = 256
    intermediate_size: int = 768
    num_layers: int = 6
    num_heads: int = 4
    decoder_hidden: int = 192
    decoder_layers: int = 4
    decoder_bn: int = 96
    dvae_dim: int = 192
    dvae_hidden: int = 192
    dvae_layers: int = 4
    dvae_bn: int = 96
    vq_dim: int = 384
    vocos_dim: int = 192
    vocos_intermediate: int = 576
    vocos_layers: int = 5


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution over 7 frames, then a pointwise MLP, added to the input."""

    def __init__(self, dim: int, intermediate: int, dilation: int, scale_name: str) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, 7, padding=3 * dilation, dilation=dilation, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, intermediate)
        self.pwconv2 = nn.Linear(intermediate, dim)
        self._scale_name = scale_name
        self.register_parameter(scale_name, nn.Parameter(_LAYER_SCALE * torch.ones(dim)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, F) to the same shape."""
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.pwconv2(functional.gelu(self.pwconv1(y))) * self.get_parameter(self._scale_name)
        return x + y.transpose(1, 2)


class ConvStack(nn.Module):
    """The body that Decoder, DVAE encoder and DVAE decoder share."""

    def __init__(
        self, num_in: int, num_out: int, hidden: int, num_layers: int, bottleneck: int
    ) -> None:
        super().__init__()
        self.conv_in = nn.Sequential(
            nn.Conv1d(num_in, bottleneck, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(bottleneck, hidden, 3, padding=1),
        )
        self.decoder_block = nn.ModuleList(
            ConvNeXtBlock(hidden, 4 * hidden, 2, "weight") for _ in range(num_layers)
        )
        self.conv_out = nn.Conv1d(hidden, num_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, num_in, F) to (B, num_out, F)."""
        x = self.conv_in(x)
        for block in self.decoder_block:
            x = block(x)
        out: Tensor = self.conv_out(x)
        return out


def two_frames_a_step(x: Tensor) -> Tensor:
    """(B, T, C) to (B, C / 2, 2 T): the halves of a step become two frames side by side."""
    batch, steps, width = x.shape
    return x.reshape(batch, 2 * steps, width // 2).transpose(1, 2)


class _Quantizer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.quantizer = GroupedResidualFSQ(
            dim=dim, levels=list(LEVELS), num_quantizers=NUM_VQ // GROUPS, groups=GROUPS
        )


class Dvae(nn.Module):
    """Mel spectrogram to four codes a step, and back."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        dim = dims.dvae_dim
        stack = (dims.dvae_hidden, dims.dvae_layers, dims.dvae_bn)
        self.register_buffer("coef", torch.ones(1, N_MELS, 1))
        self.downsample_conv = nn.Sequential(
            nn.Conv1d(N_MELS, dim, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(dim, dim, 4, stride=2, padding=1),
            nn.GELU(),
        )
        self.encoder = ConvStack(dim, dims.vq_dim, *stack)
        self.vq_layer = _Quantizer(dims.vq_dim)
        self.decoder = ConvStack(dim, dim, *stack)
        self.out_conv = nn.Conv1d(dim, N_MELS, 3, padding=1, bias=False)

    def features(self, mel: Tensor) -> Tensor:
        """(B, 100, F) log-mel to (B, F // 2, vq_dim), before quantisation."""
        out: Tensor = self.encoder(self.downsample_conv(mel / self.coef)).transpose(1, 2)
        return out

    def pre_activations(self, features: Tensor) -> Tensor:
        """What the quantisers round, (groups, B, T, 4): trained to stay where they do not clip."""
        groups = features.chunk(GROUPS, dim=-1)
        return torch.stack(
            [rvq.project_in(x) for rvq, x in zip(self.vq_layer.quantizer.rvqs, groups, strict=True)]
        )

    def quantize(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features as the codes hold them, and the codes: (B, T, vq_dim) and (B, T, 4) int64."""
        quantized, indices = self.vq_layer.quantizer(features)
        codes = indices.permute(1, 2, 0, 3).flatten(2)
        return quantized, codes.long()

    def decode(self, quantized: Tensor) -> Tensor:
        """(B, T, vq_dim) to the log-mel (B, 100, 2 T)."""
        out: Tensor = self.out_conv(self.decoder(two_frames_a_step(quantized))) * self.coef
        return out


class MelDecoder(nn.Module):
    """The file `Decoder`: hidden states of the GPT to a mel spectrogram."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        half = dims.hidden_size // 2
        self.register_buffer("coef", torch.ones(1, N_MELS, 1))
        self.decoder = ConvStack(
            half, half, dims.decoder_hidden, dims.decoder_layers, dims.decoder_bn
        )
        self.out_conv = nn.Conv1d(half, N_MELS, 3, padding=1, bias=False)

    def forward(self, hiddens: Tensor) -> Tensor:
        """(B, T, hidden) to the log-mel (B, 100, 2 T)."""
        out: Tensor = self.out_conv(self.decoder(two_frames_a_step(hiddens))) * self.coef
        return out


class _Backbone(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        dim = dims.vocos_dim
        self.embed = nn.Conv1d(N_MELS, dim, 7, padding=3)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.convnext = nn.ModuleList(
            ConvNeXtBlock(dim, dims.vocos_intermediate, 1, "gamma")
            for _ in range(dims.vocos_layers)
        )
        self.final_layer_norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.norm(self.embed(mel).transpose(1, 2)).transpose(1, 2)
        for block in self.convnext:
            x = block(x)
        out: Tensor = self.final_layer_norm(x.transpose(1, 2))
        return out


class _Head(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, N_FFT + 2)


class Vocos(nn.Module):
    """Mel spectrogram to waveform by the inverse short-time Fourier transform."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.backbone = _Backbone(dims)
        self.head = _Head(dims.vocos_dim)
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        """(B, 100, F) log-mel to (B, 256 (F - 1)) samples."""
        log_magnitude, phase = self.head.out(self.backbone(mel)).float().transpose(1, 2).chunk(2, 1)
        magnitude = log_magnitude.exp().clamp(max=1e2)
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        return torch.istft(spectrum, N_FFT, HOP_SAMPLES, N_FFT, self.window, center=True)


class RmsNorm(nn.Module):
    """Root mean square normalisation with a gain per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to the same shape."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, 1e-6)


class _Attention(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.num_heads = dims.num_heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(dims.hidden_size, dims.hidden_size, bias=False))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and queries and keys of all heads: (B, T, H) and (B, heads, T, head size)."""
        batch, steps, hidden = x.shape
        q, k, v = (
            project(x).view(batch, steps, self.num_heads, -1).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        # Written out, as torch's fused kernel takes 1.7 times as long on these short lines.
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        is_later = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        out = scores.masked_fill(is_later, -torch.inf).softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(batch, steps, hidden)), q, k


class _Mlp(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.up_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.down_proj = nn.Linear(dims.intermediate_size, dims.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(dims.hidden_size)
        self.self_attn = _Attention(dims)
        self.post_attention_layernorm = RmsNorm(dims.hidden_size)
        self.mlp = _Mlp(dims)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attended, q, k = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), q, k


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (B, heads, T, head size), its halves being the two axes."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos.to(x.dtype) + turned * sin.to(x.dtype)


class Gpt(nn.Module):
    """The file `gpt`: a Llama without its own embeddings."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(dims) for _ in range(dims.num_layers))
        self.norm = RmsNorm(dims.hidden_size)
        self._head_size = dims.hidden_size // dims.num_heads
        for layer in self.layers:
            for name, parameter in layer.named_parameters():
                if parameter.dim() == 2:
                    std = 0.02 if "o_proj" not in name and "down_proj" not in name else 0.01
                    nn.init.normal_(parameter, std=std * math.sqrt(768 / dims.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, hidden) embeddings to (B, T, hidden) states; every step sees those before it."""
        return self.with_attention(x, ())[0]

    def with_attention(
        self, x: Tensor, layers: Sequence[int]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The states, and queries and keys (B, heads, T, head size) of the layers asked for."""
        half = torch.arange(0, self._head_size, 2, device=x.device) / self._head_size
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * 10_000.0**-half
        cos, sin = (part.repeat(1, 2) for part in (angles.cos(), angles.sin()))
        seen = []
        for number, layer in enumerate(self.layers):
            x, q, k = layer(x, cos, sin)
            if number in layers:
                seen.append((q, k))
        return self.norm(x), seen


class Embed(nn.Module):
    """The file `Embed`: embeddings and heads of text and of the four codebooks."""

    def __init__(self, dims: Dims, num_text_tokens: int) -> None:
        super().__init__()
        hidden = dims.hidden_size
        self.emb_text = nn.Embedding(num_text_tokens, hidden)
        self.emb_code = nn.ModuleList(nn.Embedding(NUM_CODES + 1, hidden) for _ in range(NUM_VQ))
        self.head_text = _head(hidden, num_text_tokens)
        self.head_code = nn.ModuleList(_head(hidden, NUM_CODES + 1) for _ in range(NUM_VQ))
        # A speaker vector enters at length 1; the others begin there too.
        nn.init.normal_(self.emb_text.weight, std=hidden**-0.5)
        for table in self.emb_code:
            nn.init.normal_(table.weight, std=(hidden * NUM_VQ) ** -0.5)

    def code_embedding(self, codes: Tensor) -> Tensor:
        """(B, T, 4) int64 to (B, T, hidden)."""
        return torch.stack(
            [table(codes[..., book]) for book, table in enumerate(self.emb_code)]
        ).sum(0)

    def code_logits(self, hiddens: Tensor) -> Tensor:
        """(..., hidden) to (..., 4, 626)."""
        return torch.stack([head(hiddens) for head in self.head_code], dim=-2)


def _head(hidden: int, num_out: int) -> nn.Module:
    return weight_norm(nn.Linear(hidden, num_out, bias=False))
