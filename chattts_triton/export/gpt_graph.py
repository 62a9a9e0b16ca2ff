"""The GPT of a checkpoint as an ONNX graph, built node by node rather than traced.

One call runs B sequences over S new positions each. The key and value buffers are bound as past
and present alike, so attention appends in place and nothing is copied. The graph ends at the last
position: no other one is ever sampled from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import EMBED, GPT, Array, Checkpoint, TensorFile
from chattts_triton.export.graph import MICROSOFT, GraphBuilder
from chattts_triton.export.quantize import quantize_blocks
from chattts_triton.manifest import Dims

# With 128, 8-bit kernels round an odd row in another way than a pair of rows.
INT8_BLOCK_SIZE = 64
_INT8_ACTIVATIONS = 4  # MatMulNBits accuracy_level: the products are int8 x int8


def build_gpt_graph(checkpoint: Checkpoint, precision: str) -> onnx.ModelProto:
    """Decoder-only transformer with KV buffers and the fused code heads.

    Inputs: `inputs_embeds` (B, S, hidden), `seqlens_k` (B,) int32 (total length of a row less
    one), `total_sequence_length` () int32 (the longest row), `past_key_values.{i}.key/value`
    (B, H, max_len, D). Outputs: `logits` (B, num_vq * num_audio_tokens), `hidden` (B, hidden),
    `present.{i}.key/value`.

    Args:
        checkpoint: Where the weights come from.
        precision: `fp32`; `int8` for 8-bit weights in blocks of 64 input channels; `fp16` for
            weights, activations, keys and values of 16 bits, the other inputs and outputs being
            float32 as ever.

    Raises:
        ModelLoadError: A tensor is missing or has another shape than the config says.

    Source:
        ONNX Runtime contrib operators GroupQueryAttention, SkipSimplifiedLayerNormalization and
        MatMulNBits (docs/ContribOperators.md).
    """
    with checkpoint.tensors(GPT) as gpt, checkpoint.tensors(EMBED) as embed:
        return _GptGraph(checkpoint.dims, gpt, embed, precision).build()


def build_text_head_graph(checkpoint: Checkpoint) -> onnx.ModelProto:
    """`hidden` (B, hidden) to `logits` (B, num_text_tokens), used by text refinement only."""
    dims = checkpoint.dims
    graph = GraphBuilder("text_head")
    graph.input("hidden", TensorProto.FLOAT, ["batch_size", dims.hidden_size])
    with checkpoint.tensors(EMBED) as embed:
        weight = embed.read_weight_norm("head_text", (dims.num_text_tokens, dims.hidden_size))
    graph.node("MatMul", ["hidden", graph.constant("head_text", weight.T)], output="logits")
    graph.output("logits", TensorProto.FLOAT, ["batch_size", dims.num_text_tokens])
    return graph.build()


def read_embeddings(checkpoint: Checkpoint) -> tuple[Array, Array]:
    """The look-up tables: text (V, hidden), and codes (num_vq, num_audio_tokens, hidden)."""
    dims = checkpoint.dims
    with checkpoint.tensors(EMBED) as embed:
        text = embed.read("emb_text.weight", (dims.num_text_tokens, dims.hidden_size))
        codes = [
            embed.read(f"emb_code.{i}.weight", (dims.num_audio_tokens, dims.hidden_size))
            for i in range(dims.num_vq)
        ]
    return text, np.stack(codes)


@dataclass
class _GptGraph:
    dims: Dims
    gpt: TensorFile
    embed: TensorFile
    precision: str

    @property
    def kv_type(self) -> int:
        """Element type of keys and values."""
        is_half = self.precision == "fp16"
        return int(TensorProto.FLOAT16 if is_half else TensorProto.FLOAT)

    def build(self) -> onnx.ModelProto:
        self.graph = GraphBuilder("gpt")
        # Checkpoints saved from a causal language model carry this prefix, plain ones do not.
        self.prefix = "model." if "model.norm.weight" in self.gpt.names() else ""
        self._declare_inputs()
        residual = self._narrowed("inputs_embeds")
        normed = self.graph.node(
            "SimplifiedLayerNormalization",
            [residual, self._norm("layers.0.input_layernorm")],
            epsilon=self.dims.rms_norm_eps,
            axis=-1,
        )
        for layer in range(self.dims.num_hidden_layers):
            attended = self._attention(layer, normed)
            normed, residual = self._add_and_norm(
                residual, attended, f"layers.{layer}.post_attention_layernorm"
            )
            fed_forward = self._feed_forward(layer, normed)
            normed, residual = self._add_and_norm(residual, fed_forward, self._next_norm(layer))
        self._declare_outputs(normed)
        return self.graph.build()

    def _declare_inputs(self) -> None:
        dims, graph = self.dims, self.graph
        graph.input(
            "inputs_embeds", TensorProto.FLOAT, ["batch_size", "sequence_length", dims.hidden_size]
        )
        graph.input("seqlens_k", TensorProto.INT32, ["batch_size"])
        graph.input("total_sequence_length", TensorProto.INT32, [])
        for layer in range(dims.num_hidden_layers):
            for kind in ("key", "value"):
                graph.input(f"past_key_values.{layer}.{kind}", self.kv_type, self._kv_shape("past"))
        cos, sin = rotary_tables(dims)
        self._constant("cos_cache", cos)
        self._constant("sin_cache", sin)

    def _declare_outputs(self, normed: str) -> None:
        dims, graph = self.dims, self.graph
        last = graph.constant("last_position", np.asarray(-1, dtype=np.int64))
        hidden = self._widened_to("hidden")
        graph.node("Gather", [normed, last], output=hidden, axis=1)
        self._widen(hidden, "hidden")
        heads = [
            self.embed.read_weight_norm(
                f"head_code.{i}", (dims.num_audio_tokens, dims.hidden_size)
            ).T
            for i in range(dims.num_vq)
        ]
        logits = self._widened_to("logits")
        self._linear(hidden, "head_code", np.concatenate(heads, axis=1), output=logits)
        self._widen(logits, "logits")
        graph.output(
            "logits", TensorProto.FLOAT, ["batch_size", dims.num_vq * dims.num_audio_tokens]
        )
        graph.output("hidden", TensorProto.FLOAT, ["batch_size", dims.hidden_size])
        for layer in range(dims.num_hidden_layers):
            for kind in ("key", "value"):
                graph.output(f"present.{layer}.{kind}", self.kv_type, self._kv_shape("present"))

    def _narrowed(self, name: str) -> str:
        """A float32 value as the layers take it."""
        if self.precision != "fp16":
            return name
        return self.graph.node("Cast", [name], output=f"{name}_16", to=TensorProto.FLOAT16)

    def _widened_to(self, output: str) -> str:
        """What the layers give for a float32 output is called."""
        return f"{output}_16" if self.precision == "fp16" else output

    def _widen(self, name: str, output: str) -> None:
        if name != output:
            self.graph.node("Cast", [name], output=output, to=TensorProto.FLOAT)

    def _constant(self, name: str, value: Array) -> str:
        """A weight in the type that the layers compute in.

        Raises:
            ModelLoadError: 16 bits cannot hold it.
        """
        if self.precision != "fp16":
            return self.graph.constant(name, value)
        if np.abs(value).max() > np.finfo(np.float16).max:
            raise ModelLoadError(
                f"tensor {name}: holds {np.abs(value).max():.3g}, which fp16 cannot; export it as "
                "fp32 or int8"
            )
        return self.graph.constant(name, value.astype(np.float16))

    def _kv_shape(self, which: str) -> list[int | str]:
        dims = self.dims
        return ["batch_size", dims.num_attention_heads, f"{which}_max_length", dims.head_size]

    def _attention(self, layer: int, normed: str) -> str:
        dims, graph, block = self.dims, self.graph, f"layers.{layer}.self_attn"
        square = (dims.hidden_size, dims.hidden_size)
        packed = np.concatenate(
            [self._weight(f"{block}.{part}_proj", square) for part in ("q", "k", "v")], axis=1
        )
        qkv = self._linear(normed, f"{block}.qkv", packed)
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        attended = graph.node(
            "GroupQueryAttention",
            [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"],
            outputs=[
                f"attention_{layer}",
                *(f"present.{layer}.{kind}" for kind in ("key", "value")),
            ],
            domain=MICROSOFT,
            num_heads=dims.num_attention_heads,
            kv_num_heads=dims.num_attention_heads,
            do_rotary=1,
        )
        return self._linear(attended, f"{block}.o", self._weight(f"{block}.o_proj", square))

    def _feed_forward(self, layer: int, normed: str) -> str:
        dims, graph, block = self.dims, self.graph, f"layers.{layer}.mlp"
        wide = (dims.intermediate_size, dims.hidden_size)
        gate = self._linear(normed, f"{block}.gate", self._weight(f"{block}.gate_proj", wide))
        up = self._linear(normed, f"{block}.up", self._weight(f"{block}.up_proj", wide))
        silu = graph.node("Mul", [gate, graph.node("Sigmoid", [gate])])
        product = graph.node("Mul", [silu, up])
        return self._linear(
            product, f"{block}.down", self._weight(f"{block}.down_proj", wide[::-1])
        )

    def _add_and_norm(self, residual: str, update: str, norm: str) -> tuple[str, str]:
        normed, total = f"{norm}.normed", f"{norm}.residual"
        self.graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, update, self._norm(norm)],
            outputs=[normed, "", "", total],
            domain=MICROSOFT,
            epsilon=self.dims.rms_norm_eps,
        )
        return normed, total

    def _next_norm(self, layer: int) -> str:
        is_last = layer + 1 == self.dims.num_hidden_layers
        return "norm" if is_last else f"layers.{layer + 1}.input_layernorm"

    def _norm(self, name: str) -> str:
        weight = self.gpt.read(f"{self.prefix}{name}.weight", (self.dims.hidden_size,))
        return self._constant(f"{name}.weight", weight)

    def _weight(self, name: str, shape: tuple[int, ...]) -> Array:
        """A linear layer's weight as (in, out)."""
        return self.gpt.read(f"{self.prefix}{name}.weight", shape).T

    def _linear(self, x: str, name: str, weight: Array, output: str | None = None) -> str:
        if self.precision != "int8":
            return self.graph.node("MatMul", [x, self._constant(name, weight)], output=output)
        packed, scales = quantize_blocks(weight, INT8_BLOCK_SIZE)
        return self.graph.node(
            "MatMulNBits",
            [
                x,
                self.graph.constant(f"{name}.int8", packed),
                self.graph.constant(f"{name}.scales", scales),
            ],
            output=output,
            domain=MICROSOFT,
            K=weight.shape[0],
            N=weight.shape[1],
            bits=8,
            block_size=INT8_BLOCK_SIZE,
            accuracy_level=_INT8_ACTIVATIONS,
        )


def rotary_tables(dims: Dims) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines of the rotary angles, each (max_position_embeddings, D / 2)."""
    exponents = np.arange(0, dims.head_size, 2, dtype=np.float32) / np.float32(dims.head_size)
    inverse_frequencies = (1.0 / np.float32(dims.rope_theta) ** exponents).astype(np.float32)
    positions = np.arange(dims.max_position_embeddings, dtype=np.float32)
    angles = np.outer(positions, inverse_frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
