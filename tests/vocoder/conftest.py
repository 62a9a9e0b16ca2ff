"""Waveform graphs and hidden states that the tests of streamed audio share."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from chattts_triton.config import EngineConfig
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import Sequence
from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.export.graph import save
from chattts_triton.export.waveform_graph import build_waveform_graph
from chattts_triton.manifest import load_manifest
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.vocoder.decoder import FILE_NAME, WaveformDecoder

NUM_CODES = 257
NUM_SEQS = 8


@pytest.fixture(scope="session")
def tiny_decoder(tiny_repositories: dict[str, Path]) -> WaveformDecoder:
    repository = tiny_repositories["fp32"]
    directory = load_manifest(repository).member_directory(repository, "vocos_decoder")
    return WaveformDecoder(directory, threads=2)


@pytest.fixture(scope="session")
def full_decoder(full_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    """The waveform graph in the published dims; nothing else of the checkpoint is exported."""
    directory = tmp_path_factory.mktemp("waveform")
    save(build_waveform_graph(Checkpoint.open(full_checkpoint)), directory / FILE_NAME)
    return WaveformDecoder(directory, threads=2)


@pytest.fixture(scope="session")
def generated_hiddens(tiny_repositories: dict[str, Path]) -> np.ndarray:
    """(257, 768) float32: the states of a sequence that the tiny model really generated."""
    use_one_torch_thread()
    repository = tiny_repositories["fp32"]
    manifest = load_manifest(repository)
    runner = ModelRunner(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=NUM_SEQS,
        max_model_len=512,
        threads=2,
        exact_batching=True,
    )
    samplers = make_samplers(manifest, NUM_SEQS)
    for first_seed in itertools.count(0, NUM_SEQS):
        finished: list[Sequence] = []
        engine = Engine(runner, samplers, EngineConfig(max_num_seqs=NUM_SEQS))
        engine.add_request(
            [
                Sequence(
                    "test",
                    np.arange(100, 120, dtype=np.int32),
                    np.full(manifest.dims.hidden_size, 0.03, dtype=np.float32),
                    SamplingParams(seed=seed, max_new_codes=NUM_CODES),
                    finished.append,
                )
                for seed in range(first_seed, first_seed + NUM_SEQS)
            ]
        )
        while len(finished) < NUM_SEQS:
            engine.step()
        # Random weights end their sequences at random.
        lasting = [sequence for sequence in finished if sequence.num_steps == NUM_CODES]
        if lasting:
            return lasting[0].hiddens
    raise AssertionError
