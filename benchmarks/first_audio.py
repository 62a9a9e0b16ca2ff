"""Time to first audio of either side: what a listener waits before something plays."""

from __future__ import annotations

import time
from typing import Any

import torch
from streams import upstream_first_audio_s

from chattts_client import ChatTTSClient
from chattts_triton.config import num_threads

NUM_ATTEMPTS = 20


def lasting_first_audio_s(chat: Any, first_seed: int) -> float:
    """Seconds to upstream's first chunk, of the first seed whose text does not end before it.

    Raises:
        LookupError: Too many seeds end before it.
    """
    torch.set_num_threads(num_threads(0))  # our own sampling takes one
    for seed in range(first_seed, first_seed + NUM_ATTEMPTS):
        elapsed_s = upstream_first_audio_s(chat, seed)
        if elapsed_s is not None:
            return elapsed_s
    raise LookupError(f"seeds: none of {NUM_ATTEMPTS} reaches upstream's first chunk")


def our_first_audio_s(client: ChatTTSClient, text: str, mode: str, seed: int) -> float:
    """Seconds to the first chunk of our stream, which is then left."""
    began_s = time.perf_counter()
    chunks = client.stream(text, mode=mode, seed=seed)
    next(chunks)
    elapsed_s = time.perf_counter() - began_s
    chunks.close()
    return elapsed_s
