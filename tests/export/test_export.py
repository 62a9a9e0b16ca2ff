"""The export as a whole: complete, checked, and never half-written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from chattts_triton.cli.main import main
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export import repository as repository_module
from chattts_triton.export.check import Difference, compare
from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.export.graph import external_data_files
from chattts_triton.export.repository import LOCK_FILE, export, is_export_of
from chattts_triton.export.upstream import homophones_map, import_upstream
from chattts_triton.manifest import PRECISIONS, load_manifest, sha256_of


@pytest.fixture
def checkpoint_copy(tiny_checkpoint, tmp_path):
    """A checkpoint to damage; its large files are shared with the whole one until replaced."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, copy, copy_function=os.link)
    return copy


def change_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    path.unlink()  # the original is a link to a file that others use
    save_file(tensors, path)


def files_below(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): sha256_of(path)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_manifest_describes_every_file(tiny_repositories, tiny_checkpoint):
    for precision, repository in tiny_repositories.items():
        manifest = load_manifest(repository)

        manifest.verify(repository, hashes=True)

        weights = {
            str(path.relative_to(repository))
            for path in repository.rglob(f"{manifest.export_id}/*")
        }
        assert weights == set(manifest.files)
        assert manifest.precision == precision
        assert manifest.dims.hidden_size == 768
        assert manifest.dims.num_text_tokens == 21178
        assert manifest.checkpoint["asset/Embed.safetensors"] == sha256_of(
            tiny_checkpoint / "asset/Embed.safetensors"
        )
        assert {"onnx", "onnxruntime", "torch", "chattts-triton"} <= set(manifest.versions)


def test_external_data_lies_beside_every_graph_in_full(tiny_repositories):
    """B-98."""
    graphs = list(tiny_repositories["fp32"].rglob("*.onnx"))
    names = {"gpt.onnx", "text_head.onnx", "waveform.onnx", "dvae_encoder.onnx"}
    assert {path.name for path in graphs} == names

    for path in graphs:
        (name,) = external_data_files(path)
        end = max(
            int(entry.value)
            for tensor in onnx.load(str(path), load_external_data=False).graph.initializer
            for entry in tensor.external_data
            if entry.key == "offset"
        )
        assert (path.parent / name).stat().st_size > end
        onnx.load(str(path))  # reads all of it


def test_version_directories_are_numeric_and_the_ensemble_has_one(tiny_repositories):
    """B-94."""
    repository = tiny_repositories["fp32"]
    for model in ("preprocess", "gpt", "vocos_decoder", "chattts_stream", "chattts_ensemble"):
        directories = [path.name for path in (repository / model).iterdir() if path.is_dir()]
        assert directories == ["1"]
    assert (repository / "chattts").resolve() == (repository / "chattts_ensemble").resolve()


def test_tables_beside_the_graphs_are_those_of_checkpoint_and_package(
    tiny_repositories, tiny_checkpoint
):
    repository = tiny_repositories["fp32"]
    directory = load_manifest(repository).member_directory(repository, "preprocess")
    speaker = import_upstream().Chat().config.spk_stat

    mean, deviation = np.load(directory / "speaker_statistics.npy")
    homophones = json.loads((directory / "homophones.json").read_text(encoding="utf-8"))

    from ChatTTS.model.speaker import Speaker

    upstream = Speaker(768, speaker)
    assert np.array_equal(mean, upstream.mean.numpy())
    assert np.array_equal(deviation, upstream.std.numpy())
    assert homophones == homophones_map()
    assert (directory / "tokenizer.json").read_bytes() == (
        tiny_checkpoint / "asset/tokenizer/tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graphs_equal_upstreams_modules(tiny_checkpoint, tiny_repositories, precision):
    repository = tiny_repositories[precision]

    differences = compare(tiny_checkpoint, repository, load_manifest(repository))

    assert [str(d) for d in differences if d.is_too_large] == []
    limited = {d.name for d in differences if d.tolerance is not None}
    assert {"text head", "waveform of 1 steps", "waveform of 100 steps"} <= limited
    assert ("gpt logits" in limited) == (precision == "fp32")
    if precision != "fp32":
        (logits,) = (d for d in differences if d.name == "gpt logits")
        # Rounded, and still the same model.
        assert 1e-4 < logits.largest < {"int8": 2.0, "fp16": 0.05}[precision]


def test_a_difference_over_the_tolerance_or_not_a_number_is_too_large():
    assert Difference("x", 2e-4, 1e-4).is_too_large
    assert Difference("x", float("nan"), 1e-4).is_too_large
    assert not Difference("x", 5e-5, 1e-4).is_too_large
    assert not Difference("x", 9.0, None).is_too_large


def test_a_failed_check_keeps_the_export_from_going_live(tiny_checkpoint, tmp_path):
    def check(*_):
        raise ModelLoadError("export differs from PyTorch: gpt logits")

    with pytest.raises(ModelLoadError, match="gpt logits"):
        export(tiny_checkpoint, tmp_path, "int8", check=check)

    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def make_template_older(repository: Path) -> None:
    """What an operator changed and what an older version wrote look alike."""
    for path in (*repository.glob("*/config.pbtxt"), *repository.glob("*/1/model.py")):
        with path.open("a") as file:
            file.write("# of an older version")


def test_a_failed_check_leaves_the_older_template_of_the_live_set_alone(tiny_checkpoint, tmp_path):
    export(tiny_checkpoint, tmp_path, "int8")
    make_template_older(tmp_path)
    before = files_below(tmp_path)

    def check(*_):
        assert files_below(tmp_path).items() > before.items()
        raise ModelLoadError("export differs from PyTorch: gpt logits")

    with pytest.raises(ModelLoadError, match="gpt logits"):
        export(tiny_checkpoint, tmp_path, "fp32", check=check)

    assert files_below(tmp_path) == before


def test_an_export_writes_over_the_older_template_and_not_over_the_operators_files(
    tiny_checkpoint, tmp_path
):
    export(tiny_checkpoint, tmp_path, "int8")
    make_template_older(tmp_path)
    (tmp_path / "preprocess" / "lexicon.tsv").write_text("GPU\t显卡\n", encoding="utf-8")

    export(tiny_checkpoint, tmp_path, "int8")

    template = repository_module.template_directory()
    for model in ("preprocess", "gpt", "vocos_decoder"):
        for name in (f"{model}/config.pbtxt", f"{model}/1/model.py"):
            assert (tmp_path / name).read_bytes() == (template / name).read_bytes()
    lexicon = (tmp_path / "preprocess" / "lexicon.tsv").read_text(encoding="utf-8")
    assert lexicon == "GPU\t显卡\n"


@pytest.mark.parametrize("last", ["gpt/config.pbtxt", "chattts_ensemble/1/manifest.json"])
def test_one_file_that_cannot_be_written_at_the_very_end_changes_nothing(
    tiny_checkpoint, tmp_path, last
):
    export(tiny_checkpoint, tmp_path, "int8")
    make_template_older(tmp_path)
    before = files_below(tmp_path)
    (tmp_path / f"{last}.new").mkdir()  # in the way of what is written beside the file

    with pytest.raises(ModelLoadError, match="cannot be written"):
        export(tiny_checkpoint, tmp_path, "fp32")

    assert files_below(tmp_path) == before


def test_a_fresh_repository_that_cannot_be_finished_is_left_without_a_model(
    tiny_checkpoint, tmp_path
):
    (tmp_path / "chattts").mkdir()  # in the way of the link

    with pytest.raises(ModelLoadError, match=r"cannot be written: .*File exists"):
        export(tiny_checkpoint, tmp_path, "int8")

    assert {path.name for path in tmp_path.iterdir()} == {"chattts", LOCK_FILE}


LOCK_HOLDER = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_export_into_the_repository_is_refused_until_the_first_is_gone(
    tiny_checkpoint, tmp_path, capsys
):
    """The holder is killed, as an export may be, and its lock goes with it."""
    former = export(tiny_checkpoint, tmp_path, "int8")
    before = files_below(tmp_path)
    command = export_command(tiny_checkpoint, tmp_path)[3:]

    with subprocess.Popen(
        [sys.executable, "-c", LOCK_HOLDER, str(tmp_path / LOCK_FILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert main(command) == 1
        holder.kill()

    err = capsys.readouterr().err.splitlines()[-1]
    assert err == f"chattts-triton export: {tmp_path}: another export into it is running"
    assert files_below(tmp_path) == before
    assert load_manifest(tmp_path) == former
    assert main(command) == 0
    assert load_manifest(tmp_path) != former


def test_two_exports_at_a_time_leave_one_whole(tiny_checkpoint, tmp_path):
    def check(*_):
        with pytest.raises(ModelLoadError, match="another export into it is running"):
            export(tiny_checkpoint, tmp_path, "fp32", name="second")

    manifest = export(tiny_checkpoint, tmp_path, "int8", check=check)

    load_manifest(tmp_path).verify(tmp_path, hashes=True)
    assert load_manifest(tmp_path) == manifest


def test_a_second_export_replaces_the_first_and_leaves_nothing_of_it(tiny_checkpoint, tmp_path):
    first = export(tiny_checkpoint, tmp_path, "int8")
    second = export(tiny_checkpoint, tmp_path, "fp32")

    assert load_manifest(tmp_path) == second
    assert list(tmp_path.rglob(first.export_id)) == []


def test_an_export_under_a_name_leaves_the_other_set_alone_and_the_other_way_round(
    tiny_checkpoint, tmp_path
):
    first = export(tiny_checkpoint, tmp_path, "int8")
    of_chattts = files_below(tmp_path)

    second = export(tiny_checkpoint, tmp_path, "int8", name="second")
    of_second = {
        path: digest for path, digest in files_below(tmp_path).items() if path not in of_chattts
    }
    assert of_chattts.items() <= files_below(tmp_path).items()
    assert {path.split("/")[0] for path in of_second} == {
        *("second", "second_preprocess", "second_gpt", "second_vocos_decoder", "second_stream")
    }

    third = export(tiny_checkpoint, tmp_path, "fp32", name="second")
    assert of_chattts.items() <= files_below(tmp_path).items()
    assert list(tmp_path.rglob(second.export_id)) == []

    export(tiny_checkpoint, tmp_path, "fp32")
    assert list(tmp_path.rglob(first.export_id)) == []
    assert load_manifest(tmp_path, "second") == third
    load_manifest(tmp_path, "second").verify(tmp_path, hashes=True)


def test_a_named_set_is_complete_without_the_set_chattts(tiny_checkpoint, tmp_path):
    manifest = export(tiny_checkpoint, tmp_path, "int8", name="only")

    assert load_manifest(tmp_path, "only") == manifest
    assert {path.name for path in tmp_path.iterdir()} == {
        *("only", "only_preprocess", "only_gpt", "only_vocos_decoder", "only_stream", LOCK_FILE)
    }
    assert (tmp_path / "only" / "config.pbtxt").is_file()
    with pytest.raises(ModelLoadError, match=f"{tmp_path}: no exported model"):
        load_manifest(tmp_path)


def test_is_export_of_knows_the_name(tiny_checkpoint, tmp_path):
    export(tiny_checkpoint, tmp_path, "int8", name="second")

    assert is_export_of(tmp_path, tiny_checkpoint, "int8", name="second")
    assert not is_export_of(tmp_path, tiny_checkpoint, "fp32", name="second")
    assert not is_export_of(tmp_path, tiny_checkpoint, "int8", name="third")
    assert not is_export_of(tmp_path, tiny_checkpoint, "int8")

    with (tmp_path / "second_gpt" / "config.pbtxt").open("a") as config:
        config.write("# of an older version")
    assert not is_export_of(tmp_path, tiny_checkpoint, "int8", name="second")


def test_a_failed_check_keeps_a_named_set_from_going_live(tiny_checkpoint, tmp_path):
    former = export(tiny_checkpoint, tmp_path, "int8", name="second")

    def check(checkpoint, repository, manifest):
        assert manifest.member_directory(repository, "gpt").parents[1].name == "second_gpt"
        raise ModelLoadError("export differs from PyTorch: gpt logits")

    with pytest.raises(ModelLoadError, match="gpt logits"):
        export(tiny_checkpoint, tmp_path, "int8", check=check, name="second")

    assert load_manifest(tmp_path, "second") == former
    assert len(list(tmp_path.glob("second_gpt/1/*/"))) == 1


def test_the_command_exports_and_verifies_under_a_name(tiny_checkpoint, tmp_path, capsys):
    code = main([*export_command(tiny_checkpoint, tmp_path)[3:], "--name=second", "--verify"])

    out = capsys.readouterr().out
    assert code == 0
    assert "gpt logits: " in out
    assert f"as second, {load_manifest(tmp_path, 'second').export_id}, into {tmp_path}: " in out


def test_is_export_of_knows_a_config_that_is_not_ours(tiny_checkpoint, tmp_path):
    export(tiny_checkpoint, tmp_path, "int8")
    assert is_export_of(tmp_path, tiny_checkpoint, "int8")

    with (tmp_path / "gpt" / "config.pbtxt").open("a") as config:
        config.write("# of an older version")

    assert not is_export_of(tmp_path, tiny_checkpoint, "int8")


def test_is_export_of_knows_checkpoint_and_precision(
    tiny_checkpoint, tiny_repositories, checkpoint_copy, tmp_path
):
    repository = tiny_repositories["int8"]
    assert is_export_of(repository, tiny_checkpoint, "int8")
    assert not is_export_of(repository, tiny_checkpoint, "fp32")
    assert not is_export_of(tmp_path / "nowhere", tiny_checkpoint, "int8")

    def scale(tensors):
        tensors["coef"] *= 2

    change_tensors(checkpoint_copy / "asset/Decoder.safetensors", scale)
    assert not is_export_of(repository, checkpoint_copy, "int8")


@pytest.mark.parametrize(
    "name",
    ["asset/Decoder.safetensors", "asset/gpt/config.json", "asset/tokenizer/tokenizer.json"],
)
def test_a_missing_file_is_named(checkpoint_copy, tmp_path, name):
    (checkpoint_copy / name).unlink()

    with pytest.raises(ModelLoadError, match=f"{name}: missing"):
        export(checkpoint_copy, tmp_path / "repository", "fp32")

    assert not (tmp_path / "repository").exists()


def export_command(checkpoint: Path, repository: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "chattts_triton.cli.main", "export"),
        *(f"--checkpoint={checkpoint}", f"--repository={repository}", "--precision=fp32"),
    ]


def drop(name):
    return lambda tensors: tensors.pop(name)


def replace(name, tensor):
    return lambda tensors: tensors.__setitem__(name, tensor)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("gpt/model.safetensors", drop("norm.weight"), r"tensor norm\.weight is missing"),
        (
            "gpt/model.safetensors",
            replace("layers.1.mlp.up_proj.weight", torch.zeros(7, 768)),
            r"tensor layers\.1\.mlp\.up_proj\.weight has shape \[7, 768\], wanted \[\d+, 768\]",
        ),
        (
            "Embed.safetensors",
            replace("emb_code.2.weight", torch.zeros(626, 768, dtype=torch.int32)),
            r"tensor emb_code\.2\.weight is I32, wanted one of BF16, F16, F32",
        ),
        (
            "Vocos.safetensors",
            replace("head.out.bias", torch.full((1026,), torch.nan)),
            r"tensor head\.out\.bias holds NaN or infinity",
        ),
        ("Decoder.safetensors", drop("coef"), "tensor coef is missing"),
        (
            "Embed.safetensors",
            replace("emb_text.weight", torch.zeros(5)),
            r"an embedding has shape \[5\]",
        ),
    ],
)
def test_a_wrong_tensor_is_named_and_nothing_is_written(
    checkpoint_copy, tmp_path, file, change, message
):
    change_tensors(checkpoint_copy / "asset" / file, change)

    with pytest.raises(ModelLoadError, match=message) as caught:
        export(checkpoint_copy, tmp_path / "repository", "fp32")

    assert "\n" not in str(caught.value)
    assert list((tmp_path / "repository").rglob("*.onnx*")) == []


def test_a_damaged_safetensors_file_is_named(checkpoint_copy, tmp_path):
    path = checkpoint_copy / "asset/gpt/model.safetensors"
    content = path.read_bytes()[:1000]
    path.unlink()
    path.write_bytes(content)

    with pytest.raises(ModelLoadError, match=r"model\.safetensors: cannot be read"):
        export(checkpoint_copy, tmp_path / "repository", "fp32")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "wanted a JSON object"),
        ('{"hidden_size": 768}', "missing or malformed key: 'intermediate_size'"),
    ],
)
def test_a_damaged_config_is_named(checkpoint_copy, config, message):
    path = checkpoint_copy / "asset/gpt/config.json"
    path.unlink()
    path.write_text(config)

    with pytest.raises(ModelLoadError, match=message):
        Checkpoint.open(checkpoint_copy)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_key_value_heads", 4, "num_key_value_heads differs"),
        ("num_attention_heads", 100, "head size"),
        ("num_hidden_layers", 3, r"tensor layers\.2\.\S+ is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(checkpoint_copy, tmp_path, key, value, message):
    path = checkpoint_copy / "asset/gpt/config.json"
    config = json.loads(path.read_text())
    config["num_key_value_heads"] = config["num_attention_heads"]
    config[key] = value
    if key == "num_attention_heads":
        config["num_key_value_heads"] = value
    path.unlink()
    path.write_text(json.dumps(config))

    with pytest.raises(ModelLoadError, match=message):
        export(checkpoint_copy, tmp_path / "repository", "fp32")


def test_half_precision_weights_are_read_as_well(checkpoint_copy, tmp_path):
    def halve(tensors):
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(torch.float16)

    change_tensors(checkpoint_copy / "asset/Decoder.safetensors", halve)

    manifest = export(checkpoint_copy, tmp_path / "repository", "fp32")

    assert manifest == load_manifest(tmp_path / "repository")


def test_speaker_statistics_of_another_width_are_refused(checkpoint_copy, tmp_path):
    import pybase16384

    text = pybase16384.encode_to_string(np.zeros(2 * 256, dtype=np.float16).tobytes())
    (checkpoint_copy / "asset/spk_stat.txt").write_text(text, encoding="utf-8")

    with pytest.raises(ModelLoadError, match="speaker statistics of 256 dims"):
        export(checkpoint_copy, tmp_path / "repository", "fp32")


def test_a_tokenizer_without_a_control_token_is_refused(checkpoint_copy, tmp_path):
    path = checkpoint_copy / "asset/tokenizer/tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "[Ptts]"]
    path.unlink()
    path.write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(ModelLoadError, match=r"the control token \[Ptts\] is missing"):
        export(checkpoint_copy, tmp_path / "repository", "fp32")


def test_an_unknown_precision_is_refused(tiny_checkpoint, tmp_path):
    with pytest.raises(InvalidRequestError, match="precision: got 'int4', wanted fp32 or int8"):
        export(tiny_checkpoint, tmp_path, "int4")


def test_a_full_disk_is_one_line_and_leaves_the_former_export_working(tiny_checkpoint, tmp_path):
    """The limit on the size of a file stands in for the disk's end: writes fail alike."""
    former = export(tiny_checkpoint, tmp_path, "int8")
    make_template_older(tmp_path)
    before = files_below(tmp_path)

    command = export_command(tiny_checkpoint, tmp_path)
    limited = subprocess.run(
        ["bash", "-c", 'ulimit -f 20000; exec "$@"', "_", *command],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )

    assert limited.returncode == 1
    assert "cannot be written" in limited.stderr.splitlines()[-1]
    assert load_manifest(tmp_path) == former
    assert files_below(tmp_path) == before


def test_an_unwritable_repository_is_one_line(tiny_checkpoint, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")

    code = main(export_command(tiny_checkpoint, tmp_path / "file")[3:])

    assert code == 1
    assert "cannot be written" in capsys.readouterr().err.splitlines()[-1]


def test_a_killed_export_leaves_the_former_one_working(tiny_checkpoint, tmp_path):
    former = export(tiny_checkpoint, tmp_path, "int8")
    process = subprocess.Popen(
        export_command(tiny_checkpoint, tmp_path),
        stderr=subprocess.DEVNULL,
    )
    deadline_s = time.monotonic() + 60
    while not list(tmp_path.glob("gpt/1/fp32-*/text_embeddings.npy")):
        assert time.monotonic() < deadline_s
        assert process.poll() is None
        time.sleep(0.005)  # there is no event: another process is to be caught half-way
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert load_manifest(tmp_path) == former
    load_manifest(tmp_path).verify(tmp_path, hashes=True)

    export(tiny_checkpoint, tmp_path, "fp32")
    assert len(list(tmp_path.glob("gpt/1/*/"))) == 1


def test_the_command_prints_differences_and_what_it_wrote(tiny_checkpoint, tmp_path, capsys):
    code = main([*export_command(tiny_checkpoint, tmp_path)[3:], "--verify"])

    out = capsys.readouterr().out
    assert code == 0
    assert "gpt logits: " in out
    assert "(at most 1e-04)" in out
    assert f"into {tmp_path}: " in out


def test_the_template_is_the_committed_repository(tiny_repositories):
    template = repository_module.template_directory()
    for model in ("preprocess", "gpt", "vocos_decoder", "chattts_ensemble"):
        name = f"{model}/config.pbtxt"
        written = tiny_repositories["fp32"] / name
        assert written.read_bytes() == (template / name).read_bytes()
