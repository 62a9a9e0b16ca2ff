"""Keys and values of all running sequences: one contiguous slot of fixed length for each."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chattts_triton.engine.placement import KVDtype, Placement
from chattts_triton.errors import GenerationError, ModelLoadError
from chattts_triton.manifest import Dims
from chattts_triton.ort import device_buffer, make_session

MOVE_GRAPH = "kv_move.onnx"  # of exports that may run on a device


@dataclass(frozen=True)
class SlotView:
    """The same slots of one buffer, as an IO binding takes them."""

    device: str
    device_id: int
    dtype: KVDtype
    shape: tuple[int, ...]  # (slots, H, max_len, D)
    address: int


class KVCache(Protocol):
    """Buffers (num_slots, H, max_len, D), a key and a value one for each layer."""

    max_len: int

    @property
    def is_on_host(self) -> bool:
        """Whether the graph that reads them runs on the CPU."""

    def views(self, start: int, stop: int) -> Iterator[tuple[str, SlotView]]:
        """Slots from `start` to `stop` of each buffer, by its name `{layer}.key` or `.value`."""

    def move(self, source: int, target: int, num_positions: int) -> None:
        """Copy at least the first positions of one slot over another."""

    def give_back(self) -> None:
        """Let go of what the slots hold, where the memory can be had again as they fill."""


class HostKVCache:
    """Slots in the machine's memory.

    They are allocated at once but committed by the operating system page by page, as slots fill.
    One slot of 4,096 positions of the published model would take 503 MB, and few fill a tenth.
    """

    is_on_host = True

    def __init__(self, dims: Dims, num_slots: int, max_len: int, dtype: KVDtype) -> None:
        self.max_len = max_len
        self._dtype = dtype
        shape = _shape(dims, num_slots, max_len)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._memory = {name: _lazy_memory(size) for name in _names(dims)}
        self._buffers: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(memory, dtype=dtype).reshape(shape)
            for name, memory in self._memory.items()
        }

    def views(self, start: int, stop: int) -> Iterator[tuple[str, SlotView]]:
        """See KVCache."""
        for name, buffer in self._buffers.items():
            slots = buffer[start:stop]
            yield name, SlotView("cpu", 0, self._dtype, slots.shape, slots.ctypes.data)

    def move(self, source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of one slot over another."""
        for buffer in self._buffers.values():
            buffer[target, :, :num_positions] = buffer[source, :, :num_positions]

    def give_back(self) -> None:
        """Return all pages to the operating system."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)


class DeviceKVCache:
    """Slots in a device's memory, taken at once; nothing of them ever crosses to the host.

    Args:
        dims: Of the model.
        num_slots: Sequences that there is room for.
        max_len: Positions of a slot.
        dtype: Of keys and values.
        directory: Holds the graph MOVE_GRAPH, by which the device copies slots.
        placement: On which device; the CPU serves as one.

    Raises:
        ModelLoadError: The device has no room for them.
    """

    is_on_host = False

    def __init__(
        self,
        dims: Dims,
        num_slots: int,
        max_len: int,
        dtype: KVDtype,
        directory: Path,
        placement: Placement,
    ) -> None:
        self.max_len = max_len
        self._dtype = dtype
        self._shape = _shape(dims, num_slots, max_len)
        self._slot_bytes = int(np.prod(self._shape[1:])) * np.dtype(dtype).itemsize
        device, device_id = placement.device, placement.device_id
        self._place = (device.value, device_id)
        try:
            # Zeros: an attention kernel may read behind a sequence before it masks what is there.
            zeros = np.zeros(self._shape, dtype=dtype)
            self._buffers = {name: device_buffer(zeros, device, device_id) for name in _names(dims)}
        except Exception as error:
            size_mb = 2 * dims.num_hidden_layers * num_slots * self._slot_bytes / 1e6
            raise ModelLoadError(
                f"max_num_seqs: no room on {device} for {num_slots} KV slots of {size_mb:.0f} MB "
                f"in all: {error}"
            ) from error
        self._mover = make_session(
            directory / MOVE_GRAPH, threads=1, device=device, device_id=device_id, spinning=False
        )

    def views(self, start: int, stop: int) -> Iterator[tuple[str, SlotView]]:
        """See KVCache."""
        shape = (stop - start, *self._shape[1:])
        for name, buffer in self._buffers.items():
            address = buffer.data_ptr() + start * self._slot_bytes
            yield name, SlotView(*self._place, self._dtype, shape, address)

    def give_back(self) -> None:
        """Nothing: a device's memory is taken once and kept."""

    def move(self, source: int, target: int, num_positions: int) -> None:
        """Copy one slot over another, all of it: one copy within the device for each buffer.

        Raises:
            GenerationError: The device failed.
        """
        del num_positions
        binding = self._mover.io_binding()
        for name, view in self.views(source, source + 1):
            bind(binding.bind_input, f"source.{name}", view)
        for name, view in self.views(target, target + 1):
            bind(binding.bind_output, f"target.{name}", view)
        try:
            self._mover.run_with_iobinding(binding)
        except Exception as error:
            raise GenerationError(f"a KV slot could not be moved: {error}") from error


def _lazy_memory(size: int) -> mmap.mmap:
    """Private pages that take no memory until they are written."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A huge page would commit some thousand positions for the first one. Without such pages in the
    # kernel there is nothing to forbid.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def bind(bind_one: Any, name: str, view: SlotView) -> None:
    """Name slots as an input or an output; whoever binds keeps the cache alive."""
    bind_one(name, view.device, view.device_id, view.dtype, view.shape, view.address)


def _shape(dims: Dims, num_slots: int, max_len: int) -> tuple[int, ...]:
    return num_slots, dims.num_attention_heads, max_len, dims.head_size


def _names(dims: Dims) -> list[str]:
    return [
        f"{layer}.{kind}" for layer in range(dims.num_hidden_layers) for kind in ("key", "value")
    ]
