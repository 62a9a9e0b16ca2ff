"""`tensors.py` against what else describes tensors: numpy, the client and the exported graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from chattts_client._options import OPTION_DATATYPES
from chattts_triton.manifest import load_manifest
from chattts_triton.serving.edge import NUMPY_DTYPES
from chattts_triton.tensors import (
    AUDIO,
    CHATTTS,
    CHATTTS_STREAM,
    GPT,
    HIDDENS,
    MODE,
    OPTIONS,
    PREPROCESS,
    PROMPT,
    READ,
    SPEAKER_EMBEDDING,
    TEXT,
    VOCOS_DECODER,
    ModelSpec,
    TensorSpec,
)

MODELS = (PREPROCESS, GPT, VOCOS_DECODER, CHATTTS, CHATTTS_STREAM)


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
def test_each_tensor_is_declared_once_and_of_a_type_that_numpy_has(spec: ModelSpec):
    for side in (spec.inputs, spec.outputs):
        assert len({tensor.name for tensor in side}) == len(side)
        assert all(tensor.dtype in NUMPY_DTYPES for tensor in side)


def test_no_output_is_optional_and_only_options_are_among_the_callers_inputs():
    for spec in MODELS:
        assert not any(tensor.optional for tensor in spec.outputs)
    for spec in (CHATTTS, PREPROCESS):
        assert set(spec.inputs) == {TEXT, *OPTIONS}
    assert set(CHATTTS_STREAM.inputs) == {TEXT, *OPTIONS, MODE}
    for spec in (CHATTTS, PREPROCESS, CHATTTS_STREAM, GPT):
        assert all(tensor.optional for tensor in spec.inputs)
    assert all(option.optional for option in OPTIONS)


def test_a_prompt_is_what_preprocess_makes_and_a_read_is_nothing_of_it():
    made = {tensor.name: (tensor.dtype, tensor.shape) for tensor in PREPROCESS.outputs}
    taken = {tensor.name: (tensor.dtype, tensor.shape) for tensor in GPT.inputs}
    read = {tensor.name for tensor in READ}

    assert {name: taken[name] for name in taken if name not in read}.items() <= made.items()
    assert not read & set(made)
    assert {tensor.name for tensor in PROMPT} <= set(taken)


def test_the_client_sends_each_option_in_the_declared_type():
    declared = {
        option.name.lower(): "BYTES" if option.dtype == "STRING" else option.dtype
        for option in OPTIONS
    }

    assert declared == OPTION_DATATYPES


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_b_79_the_graphs_take_and_give_the_declared_types(
    tiny_repositories: dict[str, Path], precision: str
):
    repository = tiny_repositories[precision]

    waveform = graph_types(repository, "vocos_decoder", "waveform.onnx")
    gpt = graph_types(repository, "gpt", "gpt.onnx")

    assert waveform == {"hiddens": onnx_type(HIDDENS), "audio": onnx_type(AUDIO)}
    assert gpt["hidden"] == onnx_type(HIDDENS)
    assert gpt["inputs_embeds"] == onnx_type(SPEAKER_EMBEDDING)


def graph_types(repository: Path, member: str, name: str) -> dict[str, int]:
    directory = load_manifest(repository).member_directory(repository, member)
    graph = onnx.load(directory / name, load_external_data=False).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


def onnx_type(spec: TensorSpec) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY_DTYPES[spec.dtype])))
