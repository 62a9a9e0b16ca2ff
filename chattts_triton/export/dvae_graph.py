"""DVAE encoder of a checkpoint as one ONNX graph of any length: spectrum in, codes out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from chattts_triton.constants import N_FFT, N_MELS
from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import DVAE, Checkpoint
from chattts_triton.export.convolutions import Convolutions
from chattts_triton.export.graph import GraphBuilder

_NUM_BINS = N_FFT // 2 + 1
_SMALLEST_MEL = 1e-5  # what is quieter is as good as this, before the logarithm


def build_dvae_encoder_graph(checkpoint: Checkpoint) -> onnx.ModelProto:
    """`magnitudes` (B, 513, F) float32 to `codes` (B, F // 2, num_vq) int32, F at least 2.

    `mel` (B, 100, F), the logarithmic mel spectrum, comes out as well, for comparisons.

    Raises:
        ModelLoadError: A tensor of DVAE is missing or has a shape that does not fit.

    Source:
        2noise/ChatTTS ChatTTS/model/dvae.py and lucidrains/vector-quantize-pytorch 1.32,
        GroupedResidualFSQ, behaviour only.
    """
    graph = GraphBuilder("dvae_encoder")
    graph.input("magnitudes", TensorProto.FLOAT, ["batch_size", _NUM_BINS, "num_frames"])
    with checkpoint.tensors(DVAE) as tensors:
        layers = Convolutions(graph, tensors)
        _mel(layers, "magnitudes")
        features, width = _encoder(layers, "mel")
        _codes(layers, features, width, checkpoint)
    graph.output("codes", TensorProto.INT32, ["batch_size", "num_codes", checkpoint.dims.num_vq])
    graph.output("mel", TensorProto.FLOAT, ["batch_size", N_MELS, "num_frames"])
    return graph.build()


def _mel(layers: Convolutions, magnitudes: str) -> None:
    """(B, 513, F) to `mel` (B, 100, F), through the filters that the checkpoint holds."""
    graph = layers.graph
    filters = layers.tensors.read("preprocessor_mel.mel_spec.mel_scale.fb", (_NUM_BINS, N_MELS))
    x = graph.node("MatMul", [graph.constant("mel_filters", filters.T), magnitudes])
    x = graph.node("Max", [x, _scalar(graph, "smallest_mel", _SMALLEST_MEL)])
    graph.node("Log", [x], output="mel")


def _encoder(layers: Convolutions, mel: str) -> tuple[str, int]:
    """(B, 100, F) to features (B, F // 2, width), and width."""
    graph = layers.graph
    dim = layers.tensors.shape("downsample_conv.0.weight")[0]
    x = graph.node("Div", [mel, layers.constant("coef", (1, N_MELS, 1))])
    x = layers.conv(x, "downsample_conv.0", (dim, N_MELS, 3), padding=1)
    x = graph.node("Gelu", [x])
    x = layers.conv(x, "downsample_conv.2", (dim, dim, 4), padding=1, stride=2)
    x = graph.node("Gelu", [x])
    x, width = layers.stack(x, "encoder", dim)
    return layers.transposed(x), width


def _codes(layers: Convolutions, features: str, width: int, checkpoint: Checkpoint) -> None:
    """(B, P, width) to `codes` (B, P, num_vq): the stages of the first group, then the second's."""
    graph = layers.graph
    num_groups = layers.num_layers("vq_layer.quantizer.rvqs")
    num_stages = checkpoint.dims.num_vq // num_groups
    if num_stages * num_groups != checkpoint.dims.num_vq or width % num_groups:
        raise ModelLoadError(
            f"{checkpoint.directory / DVAE}: {num_groups} groups of quantizers do not divide "
            f"{checkpoint.dims.num_vq} codebooks and {width} channels"
        )
    groups = [f"group_{i}" for i in range(num_groups)]
    graph.node("Split", [features], outputs=groups, axis=-1, num_outputs=num_groups)
    codes = []
    for i, group in enumerate(groups):
        codes += _quantize(layers, group, i, width // num_groups, num_stages, checkpoint)
    joined = graph.node("Concat", codes, axis=-1)
    graph.node("Cast", [joined], output="codes", to=TensorProto.INT32)


def _quantize(
    layers: Convolutions,
    group: str,
    index: int,
    width: int,
    num_stages: int,
    checkpoint: Checkpoint,
) -> list[str]:
    """One group (B, P, width) to a code (B, P, 1) for each stage, as float32.

    Each dimension of a stage takes the nearest of L levels from -1 to 1; the next stage does so
    with what is left, magnified L times. A code is the levels' numbers as digits to the base L,
    the first dimension counting least.
    """
    graph = layers.graph
    name = f"vq_layer.quantizer.rvqs.{index}.project_in"
    num_dims = layers.tensors.shape(f"{name}.weight")[0]
    levels = _num_levels(checkpoint, num_dims)
    one = _scalar(graph, "one", 1.0)
    minus_one = _scalar(graph, "minus_one", -1.0)
    half = _scalar(graph, "half", 0.5)
    half_range = _scalar(graph, "half_range", (levels - 1) / 2)
    soft_limit = _scalar(graph, "soft_limit", levels / (levels - 1))
    digits = (float(levels) ** np.arange(num_dims, dtype=np.float32))[:, None]
    basis = graph.constant("basis", digits.astype(np.float32))
    x = layers.linear(group, name, width, num_dims)
    x = graph.node("Mul", [graph.node("Tanh", [graph.node("Div", [x, soft_limit])]), soft_limit])
    codes = []
    for stage in range(num_stages):
        scale = _scalar(graph, f"scale_{stage}", float(levels) ** -stage)
        unit = graph.node("Clip", [graph.node("Div", [x, scale]), minus_one, one])
        place = graph.node("Mul", [graph.node("Add", [unit, one]), half_range])
        level = graph.node("Floor", [graph.node("Add", [place, half])])  # (B, P, D): 0 to L - 1
        codes.append(graph.node("MatMul", [level, basis]))
        taken = graph.node("Sub", [graph.node("Div", [level, half_range]), one])
        x = graph.node("Sub", [x, graph.node("Mul", [taken, scale])])
    return codes


def _num_levels(checkpoint: Checkpoint, num_dims: int) -> int:
    """The shapes do not tell it, but all codes are its power and the end code is one more."""
    num_codes = checkpoint.dims.eos_code
    levels: int = round(num_codes ** (1 / num_dims))
    if levels < 2 or levels**num_dims != num_codes:
        raise ModelLoadError(
            f"{checkpoint.directory / DVAE}: {num_dims} dimensions of a quantizer do not make up "
            f"{num_codes} codes"
        )
    return levels


def _scalar(graph: GraphBuilder, name: str, value: float) -> str:
    return graph.constant(name, np.asarray(value, dtype=np.float32))
