"""What is read of the tensors of `gpt` beyond what the tests on a server send."""

from __future__ import annotations

import numpy as np
import pytest
from engine.fakes import DIMS

from chattts_triton.engine.sequence import Deadline
from chattts_triton.errors import InvalidRequestError
from chattts_triton.serving.edge import Tensors
from chattts_triton.serving.prompt_reader import PromptReader
from chattts_triton.tensors import GPT, PROMPT


def a_prompt() -> Tensors:
    return {
        "TEXT_IDS": np.array([[5, 6, 7]], np.int32),
        "NUM_TEXT_IDS": np.array([[2, 1]], np.int32),
        "SPEAKER_EMBEDDING": np.zeros((1, 8), np.float32),
        "SEED": np.array([[2**62, 9]], np.int64),
        "MAX_NEW_CODES": np.array([[10, 20]], np.int32),
        "TEMPERATURE": np.array([[0.5]], np.float32),
        "TOP_P": np.array([[0.75]], np.float32),
        "TOP_K": np.array([[20]], np.int32),
        "REPETITION_PENALTY": np.array([[1.5]], np.float32),
    }


def test_what_a_prompt_must_have_is_what_is_read_of_it():
    assert {spec.name for spec in PROMPT} == set(a_prompt())
    assert set(a_prompt()) < {spec.name for spec in GPT.inputs}

    first, second = PromptReader(a_prompt(), DIMS).segments(0)

    assert (first.text_ids.tolist(), second.text_ids.tolist()) == ([5, 6], [7])
    assert (first.params.seed, second.params.seed) == (2**62, 9)
    assert (first.params.max_new_codes, second.params.max_new_codes) == (10, 20)
    assert (first.refine_ids, second.refine_ids) == (None, None)


@pytest.mark.parametrize("missing", sorted(a_prompt()))
def test_each_tensor_that_is_missing_is_named(missing: str):
    inputs = a_prompt()
    del inputs[missing]

    with pytest.raises(InvalidRequestError, match=f"^{missing}: missing$"):
        PromptReader(inputs, DIMS)


def test_what_is_of_the_request_is_passed_on_to_its_sequences():
    deadline = Deadline.after(5.0)

    prompting = PromptReader(a_prompt(), DIMS).prompting(0, "r-1", deadline, 2)

    assert (prompting.request_id, prompting.priority) == ("r-1", 2)
    assert prompting.deadline is deadline
