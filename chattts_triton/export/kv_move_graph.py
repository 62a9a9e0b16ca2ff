"""The graph by which a device copies one KV slot over another."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from chattts_triton.export.graph import GraphBuilder
from chattts_triton.manifest import Dims


def build_kv_move_graph(dims: Dims) -> onnx.ModelProto:
    """`source.{i}.key/value` to `target.{i}.key/value`, each (1, H, max_len, D) float16.

    Bound to addresses within the same buffers, it moves a slot without the host's help, for which
    ONNX Runtime has no call of its own.
    """
    graph = GraphBuilder("kv_move")
    shape: list[int | str] = [1, dims.num_attention_heads, "max_length", dims.head_size]
    for layer in range(dims.num_hidden_layers):
        for kind in ("key", "value"):
            name = f"{layer}.{kind}"
            graph.input(f"source.{name}", TensorProto.FLOAT16, shape)
            graph.node("Identity", [f"source.{name}"], output=f"target.{name}")
            graph.output(f"target.{name}", TensorProto.FLOAT16, shape)
    return graph.build()
