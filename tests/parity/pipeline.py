"""The three members in one process, without Triton: what the parity tests drive."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig
from chattts_triton.engine.engine import Engine
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import Sampler, use_one_torch_thread
from chattts_triton.engine.sequence import FinishReason, Sequence
from chattts_triton.manifest import load_manifest
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.vocoder.decoder import WaveformDecoder


@dataclass
class Utterance:
    """One text, and what became of it once `done` is set."""

    text: str
    seed: int
    max_new_codes: int
    done: threading.Event = field(default_factory=threading.Event)
    sequence: Sequence | None = None

    def wait(self) -> Sequence:
        assert self.done.wait(timeout=120)
        assert self.sequence.error is None, self.sequence.error
        assert self.sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        return self.sequence


class Pipeline:
    """preprocess, engine and decoder over one export."""

    def __init__(self, repository: Path, *, max_num_seqs: int = 8, exact_batching: bool = True):
        use_one_torch_thread()
        manifest = load_manifest(repository)
        self.preprocess = PreprocessModel(
            manifest.member_directory(repository, "preprocess"), manifest.special_ids
        )
        self.runner = ModelRunner(
            manifest,
            manifest.member_directory(repository, "gpt"),
            max_num_seqs=max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
            threads=2,
            exact_batching=exact_batching,
        )
        config = EngineConfig(max_num_seqs=max_num_seqs)
        self.engine = Engine(self.runner, Sampler(manifest.dims, max_num_seqs), config)
        self.decoder = WaveformDecoder(
            manifest.member_directory(repository, "vocos_decoder"), threads=2
        )
        self.engine.start()

    def close(self) -> None:
        self.engine.stop()

    def submit(self, utterance: Utterance) -> Utterance:
        inputs = {
            "TEXT": np.asarray([[utterance.text.encode()]], dtype=np.object_),
            "SEED": np.asarray([[utterance.seed]], dtype=np.int64),
            "MAX_NEW_TOKENS": np.asarray([[utterance.max_new_codes]], dtype=np.int32),
        }
        outputs = self.preprocess.run(inputs, {})

        def on_finished(sequence: Sequence) -> None:
            utterance.sequence = sequence
            utterance.done.set()

        params = SamplingParams(
            seed=int(outputs["SEED_USED"][0, 0]),
            max_new_codes=int(outputs["MAX_NEW_CODES"][0, 0]),
            temperature=float(outputs["TEMPERATURE"][0, 0]),
            top_p=float(outputs["TOP_P"][0, 0]),
            top_k=int(outputs["TOP_K"][0, 0]),
            repetition_penalty=float(outputs["REPETITION_PENALTY"][0, 0]),
        )
        self.engine.add_request(
            [
                Sequence(
                    "test",
                    outputs["TEXT_IDS"][0],
                    outputs["SPEAKER_EMBEDDING"][0],
                    params,
                    on_finished,
                )
            ]
        )
        return utterance
