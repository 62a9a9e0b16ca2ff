"""A pass of the real graph that fails after it wrote to the slots may be run again."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import run_until_idle

from chattts_triton.config import EngineConfig
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sequence import Sequence
from chattts_triton.errors import GenerationError
from chattts_triton.manifest import load_manifest
from chattts_triton.sampling_params import SamplingParams

MAX_NUM_SEQS = 5
PROMPT_LENGTHS = (9, 14, 11, 20, 12)


class LateFailingRunner(ModelRunner):
    """Fails at some decode calls, with all of their work done."""

    failing_calls: tuple[int, ...] = ()
    num_calls = 0

    def decode(self, *arguments):
        outputs = super().decode(*arguments)
        self.num_calls += 1
        if self.num_calls - 1 in self.failing_calls:
            raise GenerationError("out of memory")
        return outputs


def generate(repository, numbers, failing_calls=()) -> dict[int, Sequence]:
    """Run the sequences of these numbers together; each one's seed is its number."""
    manifest = load_manifest(repository)
    runner = LateFailingRunner(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=128,
        threads=1,
        exact_batching=True,
    )
    runner.failing_calls = failing_calls
    samplers = make_samplers(manifest, MAX_NUM_SEQS)
    engine, finished = Engine(runner, samplers, EngineConfig(max_num_seqs=MAX_NUM_SEQS)), []
    for number in numbers:
        ids = np.random.default_rng(number).integers(0, 20, PROMPT_LENGTHS[number], dtype=np.int32)
        voice = np.zeros(runner.dims.hidden_size, dtype=np.float32)
        params = SamplingParams(seed=number, max_new_codes=24)
        engine.add_request([Sequence("r", ids, voice, params, finished.append)])
    run_until_idle(engine)
    return {sequence.params.seed: sequence for sequence in finished}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_those_who_stay_get_the_same_bits_as_alone(tiny_repositories, precision):
    repository = tiny_repositories[precision]
    alone = {number: generate(repository, [number])[number] for number in range(MAX_NUM_SEQS)}

    ended = generate(repository, range(MAX_NUM_SEQS), failing_calls=(6, 9, 10))

    failed = {number for number, sequence in ended.items() if sequence.error}
    assert failed == {2, 3, 4}
    for number in set(ended) - failed:
        assert np.array_equal(ended[number].tokens, alone[number].tokens)
        assert ended[number].hiddens.tobytes() == alone[number].hiddens.tobytes()
        assert alone[number].num_steps > 10
