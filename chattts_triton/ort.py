"""How ONNX Runtime sessions are made: threads, providers, and files checked before they open."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from chattts_triton.errors import ModelLoadError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"


def make_session(
    path: Path, *, threads: int, on_gpu: bool = False, spinning: bool = True
) -> ort.InferenceSession:
    """Open a graph.

    Args:
        path: The graph; its external data lies beside it.
        threads: Size of the pool that one call is spread over.
        on_gpu: Put CUDA before the CPU, where this build of ONNX Runtime has it.
        spinning: Let idle threads of the pool spin between operators: faster steps, busier cores.

    Raises:
        ModelLoadError: The graph or its data is missing or damaged.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    try:
        return ort.InferenceSession(str(path), options, providers=providers(on_gpu=on_gpu))
    except Exception as error:
        raise ModelLoadError(f"{path}: cannot be loaded: {error}") from error


def providers(*, on_gpu: bool) -> list[str]:
    """The execution providers to ask for, best first."""
    has_cuda = on_gpu and CUDA in ort.get_available_providers()
    return [CUDA, CPU] if has_cuda else [CPU]
