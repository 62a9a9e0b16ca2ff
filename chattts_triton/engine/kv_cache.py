"""Keys and values of all running sequences: one contiguous slot of fixed length for each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chattts_triton.manifest import Dims

Buffer = npt.NDArray[np.float32]


class KVCache:
    """Buffers (num_slots, H, max_len, D), a key and a value one for each layer.

    They are allocated at once but committed by the operating system page by page, as slots fill.
    """

    def __init__(self, dims: Dims, num_slots: int, max_len: int) -> None:
        shape = (num_slots, dims.num_attention_heads, max_len, dims.head_size)
        self.max_len = max_len
        self.buffers: dict[str, Buffer] = {
            f"{layer}.{kind}": np.zeros(shape, dtype=np.float32)
            for layer in range(dims.num_hidden_layers)
            for kind in ("key", "value")
        }

    def move(self, source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of one slot over another."""
        for buffer in self.buffers.values():
            buffer[target, :, :num_positions] = buffer[source, :, :num_positions]
