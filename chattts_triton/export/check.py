"""Compares exported graphs with upstream's PyTorch modules on the same inputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from chattts_triton.config import num_threads
from chattts_triton.engine.model_runner import TEXT_HEAD, ModelRunner
from chattts_triton.errors import ModelLoadError
from chattts_triton.export.upstream import load_upstream_chat, reference_audio
from chattts_triton.manifest import Manifest
from chattts_triton.ort import make_session
from chattts_triton.vocoder.decoder import WaveformDecoder

LOGITS_TOLERANCE = 1e-4  # fp32 only: 8-bit weights differ by design, and are only reported
WAVEFORM_TOLERANCE = 1e-4
_PROMPT_LENGTH = 40
_DECODE_STEPS = 12
_WAVEFORM_LENGTHS = (1, 7, 100)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """The largest absolute difference between a graph and its PyTorch module."""

    name: str
    largest: float
    tolerance: float | None

    def __str__(self) -> str:
        limit = "not limited" if self.tolerance is None else f"at most {self.tolerance:.0e}"
        return f"{self.name}: {self.largest:.2e} ({limit})"

    @property
    def is_too_large(self) -> bool:
        """Over the tolerance, or not a number."""
        return self.tolerance is not None and not self.largest <= self.tolerance


def check_export(checkpoint: Path, repository: Path, manifest: Manifest) -> None:
    """Print the largest differences of every graph.

    Raises:
        ModelLoadError: One is over its tolerance; the message names the graph.
    """
    differences = compare(checkpoint, repository, manifest)
    for difference in differences:
        sys.stdout.write(f"{difference}\n")
    for difference in differences:
        if difference.is_too_large:
            raise ModelLoadError(f"export differs from PyTorch: {difference}")


def compare(checkpoint: Path, repository: Path, manifest: Manifest) -> list[Difference]:
    """Run both sides on the same random prompts, codes and hidden states."""
    chat = load_upstream_chat(checkpoint)
    gpt = manifest.member_directory(repository, "gpt")
    threads = num_threads(0)
    runner = ModelRunner(
        manifest,
        gpt,
        max_num_seqs=1,
        max_model_len=_PROMPT_LENGTH + _DECODE_STEPS,
        threads=threads,
        exact_batching=True,
    )
    inputs = _random_inputs(manifest)
    hiddens, logits = _run_graph(runner, *inputs)
    wanted_hiddens, wanted_logits = _run_upstream(chat, *inputs)
    limit = LOGITS_TOLERANCE if manifest.precision == "fp32" else None
    text_head = make_session(gpt / TEXT_HEAD, threads=threads, prepacking=False)
    (text_logits,) = text_head.run(["logits"], {"hidden": wanted_hiddens})
    with torch.inference_mode():
        wanted_text_logits = chat.embed.head_text(torch.from_numpy(wanted_hiddens)).numpy()
    decoder = WaveformDecoder(
        manifest.member_directory(repository, "vocos_decoder"), threads=threads
    )
    return [
        Difference("gpt hidden states", _largest(hiddens, wanted_hiddens), limit),
        Difference("gpt logits", _largest(logits, wanted_logits), limit),
        Difference("text head", _largest(text_logits, wanted_text_logits), LOGITS_TOLERANCE),
        *_compare_waveforms(chat, decoder, manifest.dims.hidden_size),
    ]


def _random_inputs(
    manifest: Manifest,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Prompt ids (T,), none of them a control token, and codes (steps, num_vq)."""
    random = np.random.default_rng(0)
    dims = manifest.dims
    ids = random.integers(0, min(manifest.special_ids.values()), _PROMPT_LENGTH, dtype=np.int32)
    return ids, random.integers(0, dims.eos_code, (_DECODE_STEPS, dims.num_vq), dtype=np.int64)


def _run_graph(
    runner: ModelRunner, ids: npt.NDArray[np.int32], codes: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Hidden states and logits of the prompt's end and of every step after it, step by step."""
    prompt_logits, prompt_hidden = runner.prefill(0, runner.embed_text(ids))
    logits, hiddens = [prompt_logits[0]], [prompt_hidden[0]]
    for step, step_codes in enumerate(codes):
        num_cached = np.asarray([_PROMPT_LENGTH + step], dtype=np.int32)
        step_logits, step_hiddens = runner.decode(runner.embed_codes(step_codes[None]), num_cached)
        logits.append(step_logits[0].copy())
        hiddens.append(step_hiddens[0].copy())
    return np.stack(hiddens), np.stack(logits)


@torch.inference_mode()
def _run_upstream(
    chat: Any, ids: npt.NDArray[np.int32], codes: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """The same from one pass over prompt and codes, without any cache."""
    prompt = chat.embed.emb_text(torch.from_numpy(ids.astype(np.int64)))
    steps = torch.from_numpy(codes)
    embedded = [table(steps[:, i]) for i, table in enumerate(chat.embed.emb_code)]
    embeds = torch.cat([prompt, torch.stack(embedded).sum(0)])[None]
    hiddens = chat.gpt.gpt(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]
    hiddens = hiddens[_PROMPT_LENGTH - 1 :]
    logits = torch.stack([head(hiddens) for head in chat.embed.head_code], dim=1)
    return hiddens.numpy(), logits.numpy()


def _compare_waveforms(chat: Any, decoder: WaveformDecoder, hidden_size: int) -> list[Difference]:
    random = np.random.default_rng(1)
    differences = []
    for num_codes in _WAVEFORM_LENGTHS:
        hiddens = random.standard_normal((num_codes, hidden_size), dtype=np.float32)
        reference = np.clip(reference_audio(chat, hiddens), -1.0, 1.0)
        largest = _largest(decoder.decode(hiddens), reference)
        differences.append(
            Difference(f"waveform of {num_codes} steps", largest, WAVEFORM_TOLERANCE)
        )
    return differences


def _largest(got: Floats, wanted: Floats) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max())
