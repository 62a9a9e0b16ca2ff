"""What a set of models may be called, and what its models and files are called then."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from chattts_triton.cli.main import main
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export.names import check_not_taken, named_config
from chattts_triton.export.repository import LOCK_FILE, export, template_directory
from chattts_triton.manifest import (
    MEMBERS,
    PYTHON_MODELS,
    check_name,
    load_manifest,
    manifest_path,
    member_name,
)
from chattts_triton.serving.edge import ModelArgs

TEMPLATES = (*PYTHON_MODELS, "chattts_ensemble")


def template(model: str) -> str:
    return (template_directory() / model / "config.pbtxt").read_text(encoding="utf-8")


def parse(text: str):
    return text_format.Parse(text, pb.ModelConfig())


@pytest.mark.parametrize("name", ["chattts", "a", "2", "chattts_2", "zh-en_V2", "gpt2", "a" * 64])
def test_a_name_of_letters_digits_underscores_and_hyphens_is_accepted(name):
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "-a", "_a", ".", "..", "a/b", "a b", "a.b", "a\n", "模型", "é", "a" * 65, "a\0", "../a"],
)
def test_a_malformed_name_is_refused(name):
    with pytest.raises(InvalidRequestError, match=r"^name: got .*, wanted 1 to 64 letters, digits"):
        check_name(name)


@pytest.mark.parametrize("name", [*MEMBERS, "chattts_ensemble"])
def test_a_name_that_another_model_has_is_refused(name):
    with pytest.raises(InvalidRequestError, match=f"^name: got '{name}', wanted one that is not"):
        check_name(name)


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_each_model_of_a_named_set_is_called_after_it(model):
    names = {"chattts_stream": "second_stream"}

    assert member_name("chattts", model) == model
    assert member_name("second", model) == names.get(model, f"second_{model}")


@pytest.mark.parametrize("set_name", ["chattts", "other"])
@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_a_name_that_is_or_would_be_that_of_another_sets_model_is_refused(set_name, model):
    name = member_name(set_name, model)

    with pytest.raises(InvalidRequestError, match=f"^name: got '{name}', wanted one that"):
        check_name(name)


def test_a_refused_name_says_what_it_may_not_end_in():
    with pytest.raises(InvalidRequestError, match=r"_preprocess, _gpt, _vocos_decoder, _stream$"):
        check_name("other_stream")


def test_export_refuses_a_wrong_name_before_it_writes_anything(tiny_checkpoint, tmp_path):
    with pytest.raises(InvalidRequestError, match="name: got 'a/b'"):
        export(tiny_checkpoint, tmp_path / "repository", "int8", name="a/b")

    assert not (tmp_path / "repository").exists()


def test_a_wrong_name_is_wrong_use_of_the_command(tmp_path, capsys):
    command = ["export", f"--checkpoint={tmp_path}", f"--repository={tmp_path}"]

    with pytest.raises(SystemExit) as caught:
        main([*command, "--precision=int8", "--name=gpt"])

    assert caught.value.code == 2
    assert "argument --name: name: got 'gpt', wanted one that is not taken" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_a_python_models_config_changes_in_its_name_and_its_set_only(model):
    config = parse(named_config(template(model), "second"))

    assert config.name == member_name("second", model)
    assert config.parameters.pop("ensemble").string_value == "second"
    config.name = model
    assert config == parse(template(model))


def test_an_ensembles_config_changes_in_the_names_of_its_steps_only():
    config = parse(named_config(template("chattts_ensemble"), "second"))

    steps = config.ensemble_scheduling.step
    assert [step.model_name for step in steps] == [f"second_{member}" for member in MEMBERS]
    for step, member in zip(steps, MEMBERS, strict=True):
        step.model_name = member
    assert config == parse(template("chattts_ensemble"))


def test_a_second_export_finds_its_own_models(tmp_path):
    for model in TEMPLATES:
        is_ensemble = model == "chattts_ensemble"
        directory = tmp_path / ("second" if is_ensemble else member_name("second", model))
        directory.mkdir()
        (directory / "config.pbtxt").write_text(named_config(template(model), "second"))

    check_not_taken(tmp_path, "second")


@pytest.mark.parametrize("model", ["second", "second_preprocess", "second_gpt", "second_stream"])
@pytest.mark.parametrize("content", ["", 'backend: "python"', named_config(template("gpt"), "sec")])
def test_a_model_that_no_export_of_the_name_wrote_is_not_written_over(
    tiny_checkpoint, tmp_path, model, content
):
    (tmp_path / model).mkdir()
    config = tmp_path / model / "config.pbtxt"
    config.write_text(content)

    with pytest.raises(
        InvalidRequestError,
        match=f"^name: got 'second', wanted one .* the repository's own model '{model}' alone$",
    ):
        export(tiny_checkpoint, tmp_path, "int8", name="second")

    assert config.read_text() == content
    assert {path.name for path in tmp_path.iterdir()} == {model, LOCK_FILE}


def test_a_config_that_cannot_be_read_is_one_line(tiny_checkpoint, tmp_path):
    (tmp_path / "second" / "config.pbtxt").mkdir(parents=True)

    with pytest.raises(ModelLoadError, match=r"cannot be written: .*Is a directory"):
        export(tiny_checkpoint, tmp_path, "int8", name="second")


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "second").symlink_to("chattts_ensemble")

    with pytest.raises(InvalidRequestError, match="own model 'second' alone"):
        check_not_taken(tmp_path, "second")


def test_a_manifest_of_another_set_is_named(tiny_repositories, tmp_path):
    path = manifest_path(tmp_path, "second")
    path.parent.mkdir(parents=True)
    path.write_text(manifest_path(tiny_repositories["int8"]).read_text())

    with pytest.raises(ModelLoadError, match=re.escape(f"{path}: name: got 'chattts', wanted 'se")):
        load_manifest(tmp_path, "second")


def test_a_named_set_without_an_export_says_what_to_do(tmp_path):
    with pytest.raises(ModelLoadError, match=f"^{tmp_path / 'second'}: no exported model"):
        load_manifest(tmp_path, "second")


@pytest.mark.parametrize(
    ("config", "directory", "ensemble"),
    [
        (template("gpt"), "gpt", "chattts"),
        (named_config(template("gpt"), "second"), "second_gpt", "second"),
        (template("chattts_stream"), "chattts_stream", "chattts"),
        (named_config(template("chattts_stream"), "second"), "second_stream", "second"),
    ],
)
def test_a_model_learns_its_set_from_its_config_and_keeps_its_path_relative(
    config, directory, ensemble
):
    json_config = json_format.MessageToDict(parse(config), preserving_proto_field_name=True)

    args = ModelArgs(
        {
            "model_repository": f"./{directory}",
            "model_instance_kind": "CPU",
            "model_config": json.dumps(json_config),
        }
    )

    assert args.ensemble == ensemble
    assert args.directory == Path(directory)
    assert args.repository == Path()
    assert "ensemble" not in args.parameters
    limit = "max_streams" if directory.endswith("stream") else "max_num_seqs"
    assert args.parameters[limit] == {"max_streams": "64", "max_num_seqs": "16"}[limit]
