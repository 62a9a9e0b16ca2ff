"""Which device a graph runs on, with which options, and what its memory holds."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import pytest

from chattts_triton.engine.placement import (
    ON_CPU,
    Placement,
    place_gpt,
    row_multiple,
    slot_bytes,
)
from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import PRECISIONS, Dims, Manifest
from chattts_triton.ort import (
    CPU,
    CUDA,
    Device,
    choose_device,
    cuda_options,
    make_session,
    num_cuda_devices,
    providers,
)
from chattts_triton.serving.edge import ModelArgs

PUBLISHED = Dims(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=20,
    num_attention_heads=12,
    num_vq=4,
    num_audio_tokens=626,
    num_text_tokens=21178,
    max_position_embeddings=4096,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
)
ON_CUDA = Placement(Device.CUDA)


def manifest_of(precision: str) -> Manifest:
    return Manifest("id", precision, PUBLISHED, {}, {}, {}, {}, opset=20)


@pytest.mark.parametrize(
    ("wants_cuda", "available", "num_devices", "device"),
    [
        (True, [CUDA, CPU], 1, Device.CUDA),
        (True, [CUDA, CPU], 0, Device.CPU),
        (True, [CPU], 1, Device.CPU),
        (False, [CUDA, CPU], 1, Device.CPU),
    ],
)
def test_cuda_needs_triton_the_provider_and_a_device(wants_cuda, available, num_devices, device):
    chosen = choose_device(
        wants_cuda=wants_cuda, available=available, count_devices=lambda: num_devices
    )

    assert chosen is device


@pytest.mark.parametrize(("wants_cuda", "available"), [(True, [CPU]), (False, [CUDA, CPU])])
def test_the_driver_is_left_alone_where_cuda_cannot_be_used_anyway(wants_cuda, available):
    def count_devices():
        raise AssertionError("the driver was asked")

    chosen = choose_device(wants_cuda=wants_cuda, available=available, count_devices=count_devices)

    assert chosen is Device.CPU


def test_devices_are_counted_on_a_machine_of_any_kind():
    assert num_cuda_devices() == len(list(Path("/dev").glob("nvidia[0-9]*")))


def test_the_providers_end_with_the_cpu():
    assert providers(Device.CPU) == [CPU]
    assert providers(Device.CUDA, 1) == [(CUDA, cuda_options(1)), CPU]


def test_the_options_of_cuda_bound_memory_keep_float32_and_capture_nothing():
    options = cuda_options(2, 3_000_000_000)

    assert options["device_id"] == "2"
    assert options["gpu_mem_limit"] == "3000000000"
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert options["use_tf32"] == "0"
    assert options["enable_cuda_graph"] == "0"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert not {"user_compute_stream", "has_user_compute_stream"} & set(options)
    assert all(isinstance(value, str) for value in options.values())


def test_without_a_limit_the_arena_has_none():
    assert "gpu_mem_limit" not in cuda_options(0)


def test_a_session_that_asks_for_cuda_and_gets_none_is_refused(tiny_repositories):
    """ONNX Runtime would go on with the CPU, which cannot read addresses of the device."""
    (graph,) = tiny_repositories["fp16"].glob("gpt/1/*/gpt.onnx")

    # No machine has that many devices; where there is CUDA at all, ONNX Runtime says so itself.
    message = r"gpt\.onnx: (CUDA cannot be used: a library|cannot be loaded)"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(ModelLoadError, match=message):
            make_session(graph, threads=1, device=Device.CUDA, device_id=99)


def test_only_fp16_goes_to_cuda(caplog):
    assert place_gpt("fp16", ON_CUDA) == ON_CUDA
    assert caplog.records == []

    for precision in ("fp32", "int8"):
        placement = place_gpt(precision, Placement(Device.CUDA, 1, 5))
        assert placement == Placement(Device.CPU, 1, 5)

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "is int8 and stays on the CPU beside a GPU; export it as fp16" in messages[1]


def test_fp16_on_the_cpu_runs_and_says_that_it_is_slow(caplog):
    assert place_gpt("fp16", ON_CPU) == ON_CPU
    assert place_gpt("int8", ON_CPU) == ON_CPU

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "is fp16 and runs on the CPU, which is slow" in record.getMessage()


@pytest.mark.parametrize(("device", "multiple"), [(Device.CPU, 2), (Device.CUDA, 16)])
def test_exact_batches_are_padded_as_the_kernels_need_it(device, multiple):
    assert row_multiple(device, exact_batching=True, max_num_seqs=16) == multiple
    assert row_multiple(device, exact_batching=False, max_num_seqs=16) == 1


def test_a_slot_of_16_bits_takes_half_of_one_of_32():
    sizes = {precision: slot_bytes(PUBLISHED, precision, 4096) for precision in PRECISIONS}

    assert sizes["fp16"] == 2 * 20 * 12 * 4096 * 64 * 2
    assert sizes["fp32"] == sizes["int8"] == 2 * sizes["fp16"]


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "gpt.onnx.data"
    with path.open("wb") as file:
        file.truncate(400_000_000)
    return path


def test_what_slots_leave_of_a_limit_is_for_the_session(weights):
    placement = Placement(Device.CUDA, memory_limit_bytes=8_000_000_000)

    left = placement.arena_limit(manifest_of("fp16"), weights, 16, 4096)

    assert left == 8_000_000_000 - 16 * slot_bytes(PUBLISHED, "fp16", 4096)


@pytest.mark.parametrize(("limit_mb", "num_fitting"), [(4000, 14), (500, 0), (100, 0)])
def test_too_many_slots_for_the_device_are_refused_with_how_many_fit(
    weights, limit_mb, num_fitting
):
    placement = Placement(Device.CUDA, memory_limit_bytes=limit_mb * 1_000_000)

    message = (
        rf"parameter device_memory_mb: got {limit_mb}, wanted room for the weights and 16 KV slots "
        rf"of 251\.7 MB; it has room for max_num_seqs {num_fitting}$"
    )
    with pytest.raises(ModelLoadError, match=message):
        placement.arena_limit(manifest_of("fp16"), weights, 16, 4096)


def test_as_many_slots_as_the_message_says_do_fit(weights):
    placement = Placement(Device.CUDA, memory_limit_bytes=4_000_000_000)

    assert placement.arena_limit(manifest_of("fp16"), weights, 14, 4096) > 400_000_000


@pytest.mark.parametrize("placement", [Placement(Device.CPU, 0, 1), Placement(Device.CUDA)])
def test_the_cpu_and_no_limit_limit_nothing(weights, placement):
    assert placement.arena_limit(manifest_of("fp16"), weights, 16, 4096) == 0


def test_a_model_learns_its_device_from_triton():
    args = {
        "model_repository": "./gpt",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_config": json.dumps({}),
    }

    on_cpu = ModelArgs(args)
    on_gpu = ModelArgs(args | {"model_instance_kind": "GPU", "model_instance_device_id": "3"})

    assert (on_cpu.device, on_cpu.device_id) == (Device.CPU, 0)
    assert on_gpu.device is choose_device(wants_cuda=True)
    assert on_gpu.device_id == 3
