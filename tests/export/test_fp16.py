"""16 bits: the graph, its KV slots on a device, and the other precisions left as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from safetensors.torch import load_file, save_file

from chattts_triton.engine.kv_cache import MOVE_GRAPH, DeviceKVCache, HostKVCache
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.placement import ON_CPU
from chattts_triton.errors import GenerationError, ModelLoadError
from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.export.gpt_graph import build_gpt_graph
from chattts_triton.manifest import load_manifest, sha256_of

NUM_SLOTS = 4
MAX_LEN = 128
PROMPT = 20
# The structure of two graphs of the tiny stand-in in fp32, their weights lying beside them.
GPT_SHA256 = "ae388c36dc9314d4208f9b4cdd7e35b0907b587cc514a1a3d6518c41d6c42f4f"
WAVEFORM_SHA256 = "c34da7bfdbed887c32802dd3b9e63402726b85d9d492a08cb8dcbf0da553e8dd"


def directory_of(repository: Path, member: str = "gpt") -> Path:
    return load_manifest(repository).member_directory(repository, member)


@pytest.fixture
def make_runner(tiny_repositories):
    def make(precision: str = "fp16", *, on_device: bool = False) -> ModelRunner:
        """One with slots in the memory of a device, for which the CPU stands in, or without."""
        repository = tiny_repositories[precision]
        manifest, directory = load_manifest(repository), directory_of(repository)
        slots = (manifest.dims, NUM_SLOTS, MAX_LEN, np.float16, directory, ON_CPU)
        return ModelRunner(
            manifest,
            directory,
            max_num_seqs=NUM_SLOTS,
            max_model_len=MAX_LEN,
            threads=1,
            exact_batching=True,
            kv_cache=DeviceKVCache(*slots) if on_device else None,
        )

    return make


def fill(runner: ModelRunner, num_slots: int) -> None:
    for slot in range(num_slots):
        runner.prefill(slot, runner.embed_text(np.arange(50 + slot, 50 + slot + PROMPT)))


def step(runner: ModelRunner, num_seqs: int, number: int = 0) -> tuple[bytes, bytes]:
    codes = np.random.default_rng(number).integers(0, 625, (num_seqs, 4))
    num_cached = np.full(num_seqs, PROMPT + number, dtype=np.int32)
    logits, hiddens = runner.decode(runner.embed_codes(codes), num_cached)
    return logits.tobytes(), hiddens.tobytes()


def test_the_graphs_of_fp32_are_byte_for_byte_those_of_before_there_was_fp16(tiny_repositories):
    repository = tiny_repositories["fp32"]

    assert sha256_of(directory_of(repository) / "gpt.onnx") == GPT_SHA256
    waveform = directory_of(repository, "vocos_decoder") / "waveform.onnx"
    assert sha256_of(waveform) == WAVEFORM_SHA256


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_other_precisions_have_nothing_of_16_bits(tiny_repositories, precision):
    directory = directory_of(tiny_repositories[precision])
    graph = onnx.load(str(directory / "gpt.onnx"), load_external_data=False).graph

    assert "Cast" not in {node.op_type for node in graph.node}
    types = {tensor.data_type for tensor in graph.initializer}
    types |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    assert TensorProto.FLOAT16 not in types
    assert not (directory / MOVE_GRAPH).exists()


def test_all_but_the_gpt_is_that_of_fp32(tiny_repositories):
    files = {}
    for precision in ("fp32", "fp16"):
        facts = load_manifest(tiny_repositories[precision]).files
        files[precision] = {Path(name).name: fact for name, fact in facts.items()}

    added = set(files["fp16"]) - set(files["fp32"])
    differing = {name for name, fact in files["fp32"].items() if files["fp16"][name] != fact}
    assert added == {MOVE_GRAPH}
    assert differing == {"gpt.onnx", "gpt.onnx.data"}
    sizes = {name: facts["gpt.onnx.data"].size_bytes for name, facts in files.items()}
    assert sizes["fp16"] == sizes["fp32"] / 2


def test_weights_and_kv_have_16_bits_and_what_the_engine_hands_over_has_32(tiny_repositories):
    path = directory_of(tiny_repositories["fp16"]) / "gpt.onnx"
    graph = onnx.load(str(path), load_external_data=False).graph
    types = {
        value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)
    }

    kv = {name: kind for name, kind in types.items() if name.startswith(("past", "present"))}
    assert set(kv.values()) == {TensorProto.FLOAT16}
    assert {types[name] for name in ("inputs_embeds", "logits", "hidden")} == {TensorProto.FLOAT}
    weights = {tensor.data_type for tensor in graph.initializer if len(tensor.dims) > 0}
    assert weights == {TensorProto.FLOAT16}


def test_a_step_is_that_of_fp32_within_the_steps_of_16_bits(make_runner):
    outputs = {}
    for precision in ("fp32", "fp16"):
        runner = make_runner(precision)
        fill(runner, 2)
        codes = np.random.default_rng(0).integers(0, 625, (2, 4))
        num_cached = np.full(2, PROMPT, dtype=np.int32)
        outputs[precision] = runner.decode(runner.embed_codes(codes), num_cached)

    for got, wanted in zip(outputs["fp16"], outputs["fp32"], strict=True):
        assert got.dtype == np.float32
        # Values up to about 4, of which float16 keeps 11 bits, through two layers.
        assert 0 < np.abs(got - wanted).max() <= 0.03


def test_slots_on_a_device_give_the_bits_of_slots_on_the_host(make_runner):
    """Several batch sizes, each more than once: its small inputs are bound anew."""
    host, device = make_runner(), make_runner(on_device=True)
    fill(host, 4)
    fill(device, 4)

    for number, num_seqs in enumerate((4, 4, 2, 3, 4, 2)):
        assert step(device, num_seqs, number) == step(host, num_seqs, number)


def test_a_slot_that_is_moved_on_a_device_takes_its_sequence_along(make_runner):
    runner = make_runner(on_device=True)
    fill(runner, 4)
    prompt = runner.embed_text(np.arange(300, 300 + PROMPT))
    runner.prefill(0, prompt)
    wanted = step(runner, 1)
    runner.prefill(0, prompt[::-1].copy())
    assert step(runner, 1) != wanted
    runner.prefill(3, prompt)

    runner.kv_cache.move(3, 0, PROMPT)

    assert step(runner, 1) == wanted


def test_both_caches_lay_slots_out_alike(tiny_repositories):
    dims = load_manifest(tiny_repositories["fp16"]).dims
    directory = directory_of(tiny_repositories["fp16"])
    host = HostKVCache(dims, 4, MAX_LEN, np.float16)
    device = DeviceKVCache(dims, 4, MAX_LEN, np.float16, directory, ON_CPU)

    for cache in (host, device):
        whole, part = dict(cache.views(0, 4)), dict(cache.views(2, 4))
        slot_bytes = dims.hidden_size * MAX_LEN * 2
        assert list(whole) == [
            f"{layer}.{kind}"
            for layer in range(dims.num_hidden_layers)
            for kind in ("key", "value")
        ]
        for name, view in part.items():
            assert view.address == whole[name].address + 2 * slot_bytes
            assert view.shape == (2, dims.num_attention_heads, MAX_LEN, dims.head_size)
        assert len({view.address for view in whole.values()}) == len(whole)


def test_a_move_that_the_device_fails_is_a_generation_error(tiny_repositories):
    directory = directory_of(tiny_repositories["fp16"])
    dims = load_manifest(tiny_repositories["fp16"]).dims
    other = replace(dims, num_attention_heads=2 * dims.num_attention_heads)
    cache = DeviceKVCache(other, 2, MAX_LEN, np.float16, directory, ON_CPU)

    with pytest.raises(GenerationError, match=r"a KV slot could not be moved: .*dimensions"):
        cache.move(1, 0, PROMPT)


def test_slots_beyond_the_memory_are_refused(tiny_repositories):
    dims = load_manifest(tiny_repositories["fp16"]).dims
    directory = directory_of(tiny_repositories["fp16"])

    with pytest.raises(ModelLoadError, match=r"max_num_seqs: no room on cpu for \d+ KV slots"):
        DeviceKVCache(dims, 1 << 34, MAX_LEN, np.float16, directory, ON_CPU)


def test_an_export_without_the_graph_of_moves_is_named(tiny_repositories):
    dims = load_manifest(tiny_repositories["fp32"]).dims
    directory = directory_of(tiny_repositories["fp32"])

    with pytest.raises(ModelLoadError, match=rf"{MOVE_GRAPH}: cannot be loaded"):
        DeviceKVCache(dims, 1, MAX_LEN, np.float16, directory, ON_CPU)


def test_a_weight_that_16_bits_cannot_hold_is_named(tiny_checkpoint, tmp_path):
    checkpoint = copy_with(tiny_checkpoint, tmp_path, "layers.1.mlp.up_proj.weight", 7e4)

    with pytest.raises(
        ModelLoadError, match=r"tensor layers\.1\.mlp\.up: holds 7e\+04, which fp16"
    ):
        build_gpt_graph(Checkpoint.open(checkpoint), "fp16")


def copy_with(checkpoint: Path, directory: Path, name: str, value: float) -> Path:
    """The checkpoint with one value of a tensor of the GPT changed; the rest of it is linked."""
    copy = directory / "checkpoint"
    for path in checkpoint.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(checkpoint)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    path = copy / "asset/gpt/model.safetensors"
    tensors = load_file(path)
    tensors[name].view(-1)[0] = value
    path.unlink()
    save_file(tensors, path)
    return copy
