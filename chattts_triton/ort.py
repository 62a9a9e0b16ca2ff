"""How ONNX Runtime sessions are made: device, threads, and files checked before they open."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from chattts_triton.errors import ModelLoadError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
VERSION: str = ort.__version__  # of whichever package brings it, onnxruntime or onnxruntime-gpu

ProviderOptions = dict[str, str]


class Device(StrEnum):
    """Where a graph runs; the value is what ONNX Runtime calls the device's memory."""

    CPU = "cpu"
    CUDA = "cuda"


def num_cuda_devices() -> int:
    """CUDA devices that this process may use; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def choose_device(
    *,
    wants_cuda: bool,
    available: Sequence[str] | None = None,
    count_devices: Callable[[], int] = num_cuda_devices,
) -> Device:
    """CUDA where it is wanted, this ONNX Runtime has it, and there is a device; else the CPU.

    Args:
        wants_cuda: Whether Triton has given the model a GPU.
        available: The providers of ONNX Runtime; by default those of the installed one.
        count_devices: Asked last, since it starts the driver.
    """
    # A GPU build lists its provider on a machine without a GPU as well.
    available = ort.get_available_providers() if available is None else available
    is_cuda = wants_cuda and CUDA in available and count_devices() > 0
    return Device.CUDA if is_cuda else Device.CPU


def make_session(
    path: Path,
    *,
    threads: int,
    device: Device = Device.CPU,
    device_id: int = 0,
    arena_limit_bytes: int = 0,
    spinning: bool = True,
    prepacking: bool = True,
) -> ort.InferenceSession:
    """Open a graph.

    Args:
        path: The graph; its external data lies beside it.
        threads: Size of the pool that one call is spread over on the CPU.
        device: Where it runs; what CUDA has no kernel for runs on the CPU.
        device_id: Which CUDA device.
        arena_limit_bytes: Of device memory for weights and steps; 0 sets no limit.
        spinning: Let idle threads of the pool spin between operators: faster steps, busier cores.
        prepacking: Copy the weights into the order that the kernels like best: faster calls.
            Otherwise they stay in the file, and only what a call reads is in memory.

    Raises:
        ModelLoadError: The graph or its data is missing or damaged, or CUDA cannot be used.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if prepacking else "1")
    if device is Device.CUDA:
        ort.preload_dlls()  # CUDA's libraries come as packages, which no loader path leads to
    try:
        session = ort.InferenceSession(
            str(path), options, providers=providers(device, device_id, arena_limit_bytes)
        )
    except Exception as error:
        raise ModelLoadError(f"{path}: cannot be loaded: {error}") from error
    # ONNX Runtime goes on with the CPU where a library of CUDA is missing, and so would read
    # addresses of the device as its own.
    if device is Device.CUDA and CUDA not in session.get_providers():
        raise ModelLoadError(
            f"{path}: CUDA cannot be used: a library of CUDA or cuDNN is missing or of another "
            "version; install `onnxruntime-gpu[cuda,cudnn]`, or serve on the CPU by KIND_CPU"
        )
    return session


def device_buffer(
    array: npt.NDArray[np.generic], device: Device, device_id: int = 0
) -> ort.OrtValue:
    """A copy of an array in the memory of a device; `data_ptr()` is its address there.

    Raises:
        Exception: Whatever ONNX Runtime fails with where there is no room.
    """
    # On the CPU an OrtValue is a view of the array it is made from.
    source = array.copy() if device is Device.CPU else array
    return ort.OrtValue.ortvalue_from_numpy(source, device.value, device_id)


def providers(
    device: Device, device_id: int = 0, arena_limit_bytes: int = 0
) -> list[str | tuple[str, ProviderOptions]]:
    """The execution providers to ask for, best first."""
    if device is Device.CPU:
        return [CPU]
    return [(CUDA, cuda_options(device_id, arena_limit_bytes)), CPU]


def cuda_options(device_id: int, arena_limit_bytes: int = 0) -> ProviderOptions:
    """The options of the CUDA provider.

    Source:
        ONNX Runtime, docs/execution-providers/CUDA-ExecutionProvider.md.
    """
    options = {
        "device_id": str(device_id),
        # Lengths differ from call to call; by powers of two the arena would grow far beyond them.
        "arena_extend_strategy": "kSameAsRequested",
        # The exhaustive search, the default, runs anew for every length that was not seen before.
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",  # what a call reads has arrived when it starts
        "use_tf32": "0",  # which would leave float32 with 10 bits, and the tolerance of an export
        # A graph is captured for one shape and fixed addresses; every batch size is a shape.
        "enable_cuda_graph": "0",
    }
    if arena_limit_bytes:
        options["gpu_mem_limit"] = str(arena_limit_bytes)
    return options
