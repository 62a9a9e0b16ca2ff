"""Decoder, Vocos and inverse STFT of a checkpoint as one ONNX graph of any length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from chattts_triton.constants import HOP_SAMPLES, N_FFT, N_MELS
from chattts_triton.export.checkpoint import DECODER, VOCOS, Array, Checkpoint
from chattts_triton.export.convolutions import Convolutions
from chattts_triton.export.graph import GraphBuilder

_NUM_BINS = N_FFT // 2 + 1
_OVERLAP = N_FFT // HOP_SAMPLES  # frames that every sample is summed from
_LARGEST_MAGNITUDE = 100.0  # Vocos clips spectral magnitudes here


def build_waveform_graph(checkpoint: Checkpoint) -> onnx.ModelProto:
    """`hiddens` (B, T, hidden) to `audio` (B, 512 * T - 256), float32, not clipped.

    Raises:
        ModelLoadError: A tensor of Decoder or Vocos is missing or has a shape that does not fit.

    Source:
        2noise/ChatTTS ChatTTS/model/dvae.py and gemelo-ai/vocos, behaviour only.
    """
    graph = GraphBuilder("waveform")
    hidden_size = checkpoint.dims.hidden_size
    graph.input("hiddens", TensorProto.FLOAT, ["batch_size", "num_codes", hidden_size])
    with checkpoint.tensors(DECODER) as tensors:
        mel = _decoder(Convolutions(graph, tensors), "hiddens", hidden_size)
    with checkpoint.tensors(VOCOS) as tensors:
        spectrum = _vocos(Convolutions(graph, tensors), mel)
    _inverse_stft(graph, spectrum)
    graph.output("audio", TensorProto.FLOAT, ["batch_size", "num_samples"])
    return graph.build()


def _decoder(layers: Convolutions, hiddens: str, hidden_size: int) -> str:
    """(B, T, hidden) to mel (B, 100, 2T)."""
    graph = layers.graph
    half = hidden_size // 2
    # Each step's vector holds two frames, one after the other: (B, T, 2, C) -> (B, C, 2T).
    x = graph.node("Reshape", [hiddens, graph.int64(0, 0, 2, half)])
    x = graph.node("Transpose", [x], perm=[0, 3, 1, 2])
    x = graph.node("Reshape", [x, graph.int64(0, half, -1)])
    x, num_out = layers.stack(x, "decoder", half)
    x = layers.conv(x, "out_conv", (N_MELS, num_out, 3), padding=1, has_bias=False)
    return graph.node("Mul", [x, layers.constant("coef", (1, N_MELS, 1), "decoder")])


def _vocos(layers: Convolutions, mel: str) -> str:
    """Mel (B, 100, F) to log magnitudes and phases (B, F, 1026)."""
    width = layers.tensors.shape("backbone.embed.weight")[0]
    x = layers.conv(mel, "backbone.embed", (width, N_MELS, 7), padding=3)
    x = layers.transposed(layers.layer_norm(layers.transposed(x), "backbone.norm", width))
    for i in range(layers.num_layers("backbone.convnext")):
        x = layers.block(x, f"backbone.convnext.{i}", width, "gamma", dilation=1)
    x = layers.layer_norm(layers.transposed(x), "backbone.final_layer_norm", width)
    return layers.linear(x, "head.out", width, 2 * _NUM_BINS)


def _inverse_stft(graph: GraphBuilder, spectrum: str) -> None:
    """Log magnitudes and phases (B, F, 1026) to `audio` (B, (F - 1) * 256).

    ONNX has no inverse STFT: one matrix product turns a frame's spectrum into its windowed
    samples, and the frames are added where they overlap.
    """
    log_magnitude, phase = (f"{name}_{spectrum}" for name in ("log_magnitude", "phase"))
    graph.node("Split", [spectrum], outputs=[log_magnitude, phase], axis=-1, num_outputs=2)
    limit = graph.constant("largest_magnitude", np.asarray(_LARGEST_MAGNITUDE, dtype=np.float32))
    magnitude = graph.node("Min", [graph.node("Exp", [log_magnitude]), limit])
    real = graph.node("Mul", [magnitude, graph.node("Cos", [phase])])
    imaginary = graph.node("Mul", [magnitude, graph.node("Sin", [phase])])
    bins = graph.node("Concat", [real, imaginary], axis=-1)
    window = hann_window()
    frames = graph.node("MatMul", [bins, graph.constant("inverse_dft", inverse_dft(window))])
    # The window's own energy, overlapped in the same way, is what the sum is divided by.
    energy = graph.constant("window_energy", (window * window)[None, None, :].astype(np.float32))
    num_frames = graph.node("Shape", [frames], start=1, end=2)
    shape = graph.node("Concat", [graph.int64(1), num_frames, graph.int64(N_FFT)], axis=0)
    envelope = _overlap_add(graph, graph.node("Expand", [energy, shape]))
    graph.node("Div", [_overlap_add(graph, frames), envelope], output="audio")


def _overlap_add(graph: GraphBuilder, frames: str) -> str:
    """(B, F, 1024) to (B, (F - 1) * 256): hop 256, the outer half windows cut off.

    Block j of 256 samples is the sum of quarter k of frame j - k; so each quarter is laid into
    its own zero-padded row of blocks, and the four rows are added.
    """
    quarters = graph.node("Reshape", [frames, graph.int64(0, 0, _OVERLAP, HOP_SAMPLES)])
    rows = []
    for k in range(_OVERLAP):
        index = graph.constant(f"quarter_{k}", np.asarray(k, dtype=np.int64))
        row = graph.node("Gather", [quarters, index], axis=2)  # (B, F, 256)
        pads = graph.int64(0, k, 0, 0, _OVERLAP - 1 - k, 0)
        rows.append(graph.node("Pad", [row, pads]))
    blocks = graph.node("Sum", rows)  # (B, F + 3, 256)
    half = N_FFT // 2 // HOP_SAMPLES
    kept = graph.node("Slice", [blocks, graph.int64(half), graph.int64(-half), graph.int64(1)])
    return graph.node("Reshape", [kept, graph.int64(0, -1)])


def hann_window() -> npt.NDArray[np.float64]:
    """The periodic Hann window of 1024 samples."""
    window: npt.NDArray[np.float64] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    return window


def inverse_dft(window: npt.NDArray[np.float64]) -> Array:
    """Matrix (1026, 1024): real and imaginary parts of 513 bins to 1024 windowed samples."""
    angles = 2 * np.pi * np.outer(np.arange(_NUM_BINS), np.arange(N_FFT)) / N_FFT
    weight = np.full((_NUM_BINS, 1), 2.0)
    weight[0] = weight[-1] = 1.0  # the first and the last bin have no mirror image
    parts = np.concatenate([weight * np.cos(angles), -weight * np.sin(angles)])
    matrix: Array = (parts * window / N_FFT).astype(np.float32)
    return matrix
