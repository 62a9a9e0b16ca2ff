"""Layers that Decoder, DVAE and Vocos are built of, as nodes of a graph.

Channels come second outside a block, last inside it.
"""

from __future__ import annotations

import re

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import TensorFile
from chattts_triton.export.graph import GraphBuilder

_LAYER_NORM_EPS = 1e-6


class Convolutions:
    """Adds layers to `graph` whose weights are read from `tensors` by the name of the layer.

    Every method takes and returns the name of a value, and raises ModelLoadError where a tensor is
    missing or of another shape.
    """

    def __init__(self, graph: GraphBuilder, tensors: TensorFile) -> None:
        self.graph = graph
        self.tensors = tensors

    def stack(self, x: str, prefix: str, num_in: int) -> tuple[str, int]:
        """The body of a decoder or an encoder: (B, num_in, F) to (B, num_out, F), and num_out."""
        narrow = self.tensors.shape(f"{prefix}.conv_in.0.weight")[0]
        width = self.tensors.shape(f"{prefix}.conv_in.2.weight")[0]
        x = self.conv(x, f"{prefix}.conv_in.0", (narrow, num_in, 3), padding=1)
        x = self.graph.node("Gelu", [x])
        x = self.conv(x, f"{prefix}.conv_in.2", (width, narrow, 3), padding=1)
        for i in range(self.num_layers(f"{prefix}.decoder_block")):
            x = self.block(x, f"{prefix}.decoder_block.{i}", width, "weight", dilation=2)
        num_out = self.tensors.shape(f"{prefix}.conv_out.weight")[0]
        x = self.conv(x, f"{prefix}.conv_out", (num_out, width, 1), has_bias=False)
        return x, num_out

    def block(self, x: str, name: str, width: int, scale: str, dilation: int) -> str:
        """One ConvNeXt block: (B, width, F) to the same."""
        wide = self.tensors.shape(f"{name}.pwconv1.weight")[0]
        y = self.conv(
            x, f"{name}.dwconv", (width, 1, 7), padding=3 * dilation, dilation=dilation, group=width
        )
        y = self.layer_norm(self.transposed(y), f"{name}.norm", width)
        y = self.graph.node("Gelu", [self.linear(y, f"{name}.pwconv1", width, wide)])
        y = self.linear(y, f"{name}.pwconv2", wide, width)
        y = self.graph.node("Mul", [y, self.constant(f"{name}.{scale}", (width,))])
        return self.graph.node("Add", [self.transposed(y), x])

    def num_layers(self, prefix: str) -> int:
        """How many modules are numbered below `prefix`."""
        pattern = re.compile(re.escape(prefix) + r"\.(\d+)\.")
        found = {int(m.group(1)) for name in self.tensors.names() if (m := pattern.match(name))}
        if found != set(range(len(found))) or not found:
            raise ModelLoadError(f"{prefix}: layers {sorted(found)} are not numbered from 0")
        return len(found)

    def conv(
        self,
        x: str,
        name: str,
        shape: tuple[int, int, int],
        *,
        padding: int = 0,
        dilation: int = 1,
        stride: int = 1,
        group: int = 1,
        has_bias: bool = True,
    ) -> str:
        """A convolution over frames; `shape` is that of its weight: out, in per group, kernel."""
        inputs = [x, self.constant(f"{name}.weight", shape)]
        if has_bias:
            inputs.append(self.constant(f"{name}.bias", shape[:1]))
        return self.graph.node(
            "Conv",
            inputs,
            kernel_shape=[shape[2]],
            pads=[padding, padding],
            strides=[stride],
            dilations=[dilation],
            group=group,
        )

    def linear(self, x: str, name: str, num_in: int, num_out: int) -> str:
        """A linear layer over the last axis."""
        weight = self.tensors.read(f"{name}.weight", (num_out, num_in)).T
        product = self.graph.node("MatMul", [x, self.graph.constant(f"{name}.weight", weight)])
        return self.graph.node("Add", [product, self.constant(f"{name}.bias", (num_out,))])

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """A layer norm over the last axis."""
        weight, bias = (self.constant(f"{name}.{part}", (width,)) for part in ("weight", "bias"))
        return self.graph.node(
            "LayerNormalization", [x, weight, bias], axis=-1, epsilon=_LAYER_NORM_EPS
        )

    def transposed(self, x: str) -> str:
        """Channels and frames exchanged."""
        return self.graph.node("Transpose", [x], perm=[0, 2, 1])

    def constant(self, name: str, shape: tuple[int, ...], prefix: str = "") -> str:
        """A tensor as it is stored; `prefix` tells equal names of two files apart."""
        full_name = f"{prefix}.{name}" if prefix else name
        return self.graph.constant(full_name, self.tensors.read(name, shape))
