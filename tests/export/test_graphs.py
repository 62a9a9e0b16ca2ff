"""The graphs by themselves: lengths, caches, rounding."""

from __future__ import annotations

import shutil

import numpy as np
import psutil
import pytest
import torch

from chattts_triton.constants import num_audio_samples
from chattts_triton.engine.model_runner import TEXT_HEAD, ModelRunner
from chattts_triton.errors import GenerationError, ModelLoadError
from chattts_triton.export.graph import OPSET
from chattts_triton.export.quantize import dequantize_blocks, quantize_blocks
from chattts_triton.export.upstream import load_upstream_chat, reference_audio
from chattts_triton.export.waveform_graph import hann_window, inverse_dft
from chattts_triton.manifest import PRECISIONS, load_manifest
from chattts_triton.ort import make_session
from chattts_triton.vocoder.decoder import WaveformDecoder


def make_runner(repository, **options) -> ModelRunner:
    manifest = load_manifest(repository)
    options = {"max_num_seqs": 4, "max_model_len": 256, "exact_batching": True, **options}
    return ModelRunner(manifest, manifest.member_directory(repository, "gpt"), threads=2, **options)


@pytest.fixture(scope="module")
def decoder(tiny_repositories):
    repository = tiny_repositories["fp32"]
    directory = load_manifest(repository).member_directory(repository, "vocos_decoder")
    return WaveformDecoder(directory, threads=2)


@pytest.mark.parametrize("num_codes", [1, 2, 7, 257, 2048])
def test_the_waveform_graph_takes_any_length_and_equals_upstream(
    decoder, tiny_checkpoint, num_codes
):
    """B-63, B-64."""
    hiddens = np.random.default_rng(num_codes).standard_normal((num_codes, 768), dtype=np.float32)

    audio = decoder.decode(hiddens)

    assert len(audio) == 512 * num_codes - 256 == num_audio_samples(num_codes)
    wanted = reference_audio(load_upstream_chat(tiny_checkpoint), hiddens)
    assert np.abs(audio - np.clip(wanted, -1, 1)).max() <= 1e-4


def test_no_steps_at_all_is_an_error_before_the_graph(decoder):
    """B-64."""
    with pytest.raises(GenerationError, match="no code steps"):
        decoder.decode(np.zeros((0, 768), dtype=np.float32))


def test_hidden_states_that_are_not_finite_are_an_error(decoder):
    with pytest.raises(GenerationError, match="audio of 3 code steps is not finite"):
        decoder.decode(np.full((3, 768), np.nan, dtype=np.float32))


def test_audio_beyond_full_scale_is_clipped(decoder):
    audio = decoder.decode(np.full((5, 768), 60.0, dtype=np.float32))

    assert np.abs(audio).max() <= 1.0


def test_the_inverse_dft_matrix_equals_torch_istft():
    random = np.random.default_rng(0)
    spectrum = random.standard_normal((2, 513, 9))
    window = hann_window()
    frames = np.concatenate(list(spectrum)).T @ inverse_dft(window).astype(np.float64)
    overlapped, energy = np.zeros((2, 1024 + 8 * 256))
    for i, frame in enumerate(frames):
        overlapped[i * 256 : i * 256 + 1024] += frame
        energy[i * 256 : i * 256 + 1024] += window**2

    wanted = torch.istft(
        torch.from_numpy(spectrum[0] + 1j * spectrum[1]),
        1024,
        256,
        window=torch.from_numpy(window),
        center=True,
    )

    inner = slice(512, -512)
    assert np.allclose(overlapped[inner] / energy[inner], wanted.numpy(), atol=1e-7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_decode_steps_equal_the_prefill_of_the_longer_prompt(tiny_repositories, precision):
    runner = make_runner(tiny_repositories[precision])
    ids = np.arange(200, 240, dtype=np.int32)
    embeds = runner.embed_text(ids)
    runner.prefill(0, embeds[:30])
    for position in range(30, 40):
        num_cached = np.asarray([position], dtype=np.int32)
        logits, hidden = runner.decode(embeds[position : position + 1], num_cached)
    stepped = logits.copy(), hidden.copy()

    whole = runner.prefill(1, embeds)

    # 8 bits: a step and a prefill take different kernels, which round activations differently.
    tolerance = {"fp32": 1e-4, "int8": 0.5, "fp16": 0.03}[precision]
    assert np.abs(stepped[0] - whole[0]).max() <= tolerance
    assert np.abs(stepped[1] - whole[1]).max() <= tolerance


def test_every_batch_size_gives_a_row_the_same_bits(tiny_repositories):
    """B-34, B-45: prompts of different lengths side by side, no masks to get out of step."""
    for precision in PRECISIONS:
        runner = make_runner(tiny_repositories[precision], max_num_seqs=8)
        lengths = np.asarray([13, 40, 21, 60, 17, 33, 12, 25], dtype=np.int32)
        for slot, length in enumerate(lengths):
            runner.prefill(slot, runner.embed_text(np.arange(300, 300 + length)))
        embeds = runner.embed_codes(np.random.default_rng(0).integers(0, 625, (8, 4)))
        wanted = None
        for size in range(1, 9):
            logits, hiddens = runner.decode(embeds[:size], lengths[:size])
            rows = logits[0].tobytes(), hiddens[0].tobytes()
            wanted = wanted or rows
            assert rows == wanted, f"{precision}, batch of {size}"


def test_moving_a_slot_moves_what_its_sequence_attends_to(tiny_repositories):
    runner = make_runner(tiny_repositories["fp32"])
    prompt = runner.embed_text(np.arange(50, 70))
    step = runner.embed_codes(np.asarray([[1, 2, 3, 4]]))
    num_cached = np.asarray([20], dtype=np.int32)
    runner.prefill(0, prompt)
    wanted = runner.decode(step, num_cached)[0].copy()
    runner.prefill(2, prompt)
    runner.prefill(0, prompt[::-1].copy())

    runner.kv_cache.move(2, 0, 20)

    assert np.array_equal(runner.decode(step, num_cached)[0], wanted)


def test_a_failing_session_is_a_generation_error(tiny_repositories):
    runner = make_runner(tiny_repositories["fp32"], max_model_len=32)

    with pytest.raises(GenerationError, match="ONNX Runtime failed"):
        runner.prefill(0, np.zeros((33, 768), dtype=np.float32))


def test_quantised_blocks_are_within_half_a_step_of_the_weight():
    weight = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)
    weight[:128, 2] = 0.0

    values, scales = quantize_blocks(weight, 128)

    assert values.shape == (5, 3, 128)
    assert values.dtype == np.uint8
    back = dequantize_blocks(values, scales, 300)
    steps = np.repeat(scales, 128, axis=1)[:, :300].T
    assert (np.abs(back - weight) <= steps / 2 + 1e-7).all()
    assert (back[:128, 2] == 0.0).all()


def test_a_missing_or_damaged_graph_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"gpt\.onnx: cannot be loaded"):
        make_session(tmp_path / "gpt.onnx", threads=1)
    (tmp_path / "gpt.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelLoadError, match=r"gpt\.onnx: cannot be loaded"):
        make_session(tmp_path / "gpt.onnx", threads=1)


@pytest.mark.parametrize("prepacking", [True, False])
def test_weights_that_are_not_prepacked_stay_in_their_file(tiny_repositories, tmp_path, prepacking):
    repository = tiny_repositories["int8"]
    directory = load_manifest(repository).member_directory(repository, "gpt")
    graph, data = tmp_path / TEXT_HEAD, tmp_path / f"{TEXT_HEAD}.data"
    for path in (graph, data):
        shutil.copyfile(directory / path.name, path)

    session = make_session(graph, threads=1, prepacking=prepacking)

    mapped = {region.path for region in psutil.Process().memory_maps(grouped=True)}
    assert (str(data) in mapped) is not prepacking
    del session


def test_the_opset_is_one_that_onnxruntime_knows(tiny_repositories):
    assert load_manifest(tiny_repositories["fp32"]).opset == OPSET
