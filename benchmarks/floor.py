"""The least that a decode step can take: its weights read once at the speed of the memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from chattts_triton.engine.model_runner import FILE_NAME
from chattts_triton.manifest import Manifest

READ_BYTES = 1 << 30  # far more than any cache
NUM_READS = 7

# What reads with next to no arithmetic; which of them is fastest differs by processor.
READERS: tuple[Callable[[Any], Any], ...] = (
    np.bitwise_or.reduce,
    np.maximum.reduce,
    lambda words: np.dot(words.view(np.float32), words.view(np.float32)),
)


def read_bandwidth(threads: int, num_bytes: int = READ_BYTES) -> float:
    """Bytes per second that so many threads read, the best of several reads of an array."""
    words = np.zeros(num_bytes // 8, dtype=np.int64)
    words.fill(1)  # or all its pages would be one page of zeros
    parts = np.array_split(words, threads)
    best_s = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for reader in READERS:
            for _ in range(NUM_READS):
                began_s = time.perf_counter()
                list(pool.map(reader, parts))
                best_s = min(best_s, time.perf_counter() - began_s)
    return words.nbytes / best_s


def weight_bytes(manifest: Manifest) -> int:
    """Bytes of the GPT graph's weights; the embeddings are tables of which a step reads rows."""
    return sum(
        facts.size_bytes
        for path, facts in manifest.files.items()
        if path.endswith(f"/{FILE_NAME}.data")
    )


def session_over_floor(session_s: float, num_bytes: int, bytes_per_second: float) -> float:
    """How many times the floor a call of the session takes."""
    return session_s / (num_bytes / bytes_per_second)
