"""Which device the GPT graph runs on, and what its KV slots take there."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import Dims, Manifest
from chattts_triton.ort import Device

LOGGER = logging.getLogger(__name__)

# ONNX Runtime's GroupQueryAttention takes only 16-bit values on CUDA.
CUDA_PRECISIONS = ("fp16",)

KVDtype = type[np.float16] | type[np.float32]


@dataclass(frozen=True)
class Placement:
    """A device, and how much of its memory may be used.

    Attributes:
        device_id: Which one of that kind.
        memory_limit_bytes: For weights, KV slots and steps together; 0 sets no limit. Means
            nothing on the CPU.
    """

    device: Device = Device.CPU
    device_id: int = 0
    memory_limit_bytes: int = 0

    def arena_limit(self, manifest: Manifest, weights: Path, num_slots: int, max_len: int) -> int:
        """What is left for the session, its weights included, in bytes; 0 where nothing limits it.

        Args:
            manifest: Of the export.
            weights: The file of the graph's weights.
            num_slots: KV slots.
            max_len: Positions of each.

        Raises:
            ModelLoadError: Weights and slots alone are over the limit; the message says how many
                slots fit.
        """
        if self.device is Device.CPU or self.memory_limit_bytes == 0:
            return 0
        one_slot_bytes = slot_bytes(manifest.dims, manifest.precision, max_len)
        spare_bytes = self.memory_limit_bytes - weights.stat().st_size
        if spare_bytes <= num_slots * one_slot_bytes:
            raise ModelLoadError(
                f"parameter device_memory_mb: got {self.memory_limit_bytes // 1_000_000}, wanted "
                f"room for the weights and {num_slots} KV slots of {one_slot_bytes / 1e6:.1f} MB; "
                f"it has room for max_num_seqs {max(0, spare_bytes - 1) // one_slot_bytes}"
            )
        return self.memory_limit_bytes - num_slots * one_slot_bytes


ON_CPU = Placement()


def place_gpt(precision: str, wanted: Placement) -> Placement:
    """Where the GPT graph of a precision runs, given the device that there is."""
    is_for_cuda = precision in CUDA_PRECISIONS
    if wanted.device is Device.CUDA and not is_for_cuda:
        LOGGER.warning(
            "the GPT of this export is %s and stays on the CPU beside a GPU; export it as fp16",
            precision,
        )
        return replace(wanted, device=Device.CPU)
    if wanted.device is Device.CPU and is_for_cuda:
        LOGGER.warning(
            "the GPT of this export is %s and runs on the CPU, which is slow; export it as int8",
            precision,
        )
    return wanted


def row_multiple(device: Device, *, exact_batching: bool, max_num_seqs: int) -> int:
    """What the rows of every batch are padded to a multiple of, so that a row keeps its bits."""
    if not exact_batching:
        return 1
    if device is Device.CUDA:
        return max_num_seqs  # cuBLAS chooses its kernel by the number of rows
    return 2  # some kernels take two rows at a time and round the odd last one in another way


def kv_dtype(precision: str) -> KVDtype:
    """What keys and values are."""
    return np.float16 if precision == "fp16" else np.float32


def slot_bytes(dims: Dims, precision: str, max_len: int) -> int:
    """What one KV slot takes: a key and a value in each layer."""
    per_position = 2 * dims.num_hidden_layers * dims.hidden_size
    return per_position * max_len * np.dtype(kv_dtype(precision)).itemsize
