"""The three members in one process, without Triton: what the parity tests drive."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig
from chattts_triton.engine.engine import TEXT_END, Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import DEFAULT_PRIORITY, FinishReason, Sequence
from chattts_triton.manifest import load_manifest
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.serving.prompt_reader import PromptReader
from chattts_triton.vocoder.decoder import WaveformDecoder


@dataclass
class Utterance:
    """One text, and what became of it once `done` is set."""

    text: str
    seed: int
    max_new_codes: int
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    sequence: Sequence | None = None
    spoken: str = ""  # the text as preprocess hands it on

    def wait(self) -> Sequence:
        assert self.done.wait(timeout=120)
        assert self.sequence.error is None, self.sequence.error
        assert self.sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        return self.sequence


class Pipeline:
    """preprocess, engine and decoder over one export."""

    def __init__(
        self,
        repository: Path,
        *,
        max_num_seqs: int = 8,
        exact_batching: bool = True,
        text_end: int | None = None,
    ):
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
        self.manifest = manifest
        if text_end is not None:  # random weights never draw the real one
            manifest = replace(manifest, special_ids=manifest.special_ids | {TEXT_END: text_end})
        self.engine = Engine(self.runner, make_samplers(manifest, max_num_seqs), config)
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
            **utterance.inputs,
        }
        outputs = self.preprocess.run(inputs, {})

        def on_finished(sequence: Sequence) -> None:
            utterance.sequence = sequence
            utterance.done.set()

        reader = PromptReader(outputs, self.manifest.dims)
        (segment,) = reader.segments(0)
        utterance.spoken = segment.text
        prompting = reader.prompting(0, "test", None, DEFAULT_PRIORITY)
        self.engine.add_request(
            [
                Sequence(
                    prompting.request_id,
                    segment.text_ids,
                    prompting.speaker_embedding,
                    segment.params,
                    on_finished,
                    prompt_codes=prompting.prompt_codes,
                )
            ]
        )
        return utterance
