"""The linter of a repository: the committed one passes, and each single damage is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.names import named_config
from chattts_triton.export.repository import template_directory
from chattts_triton.serving.model_config import check_configs
from chattts_triton.tensors import (
    CHATTTS,
    CHATTTS_STREAM,
    GPT,
    PREPROCESS,
    READ,
    VOCOS_DECODER,
)

ENSEMBLE = "chattts_ensemble"
STREAM = "chattts_stream"
SPECS = {
    "preprocess": PREPROCESS,
    "gpt": GPT,
    "vocos_decoder": VOCOS_DECODER,
    STREAM: CHATTTS_STREAM,
    ENSEMBLE: CHATTTS,
}
MEMBERS = ("preprocess", "gpt", "vocos_decoder")
PYTHON_MODELS = (*MEMBERS, STREAM)
TENSORS = [
    (model, side, spec.name)
    for model, specs in SPECS.items()
    for side, tensors in (("input", specs.inputs), ("output", specs.outputs))
    for spec in tensors
]
MAP_LINE = re.compile(r'^ *(input|output)_map \{ key: "(\w+)" value: "(\w+)" \}$')
ENSEMBLE_LINES = (template_directory() / ENSEMBLE / "config.pbtxt").read_text().splitlines()
MAP_LINES = [n for n, line in enumerate(ENSEMBLE_LINES) if MAP_LINE.match(line)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The committed models, without what may have been exported beside them."""
    template = template_directory()
    for model in SPECS:
        version = tmp_path / model / "1"
        version.mkdir(parents=True)
        shutil.copyfile(template / model / "config.pbtxt", version.parent / "config.pbtxt")
        if model in PYTHON_MODELS:
            shutil.copyfile(template / model / "1" / "model.py", version / "model.py")
    (tmp_path / "chattts").symlink_to(ENSEMBLE)
    return tmp_path


def change(repository: Path, model: str, edit: Callable[[Any], object]) -> None:
    path = repository / model / "config.pbtxt"
    config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    edit(config)
    path.write_text(text_format.MessageToString(config), encoding="utf-8")


def tensor_of(config: Any, side: str, name: str) -> Any:
    (tensor,) = (each for each in getattr(config, side) if each.name == name)
    return tensor


def refusal(repository: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        check_configs(repository)
    return str(caught.value)


def test_b_74_b_85_b_94_the_committed_repository_passes():
    check_configs(template_directory())


def test_a_copy_of_the_committed_models_passes(repository: Path):
    check_configs(repository)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_exported_repository_passes(tiny_repositories: dict[str, Path], precision: str):
    check_configs(tiny_repositories[precision])


@pytest.mark.parametrize(
    "number", MAP_LINES, ids=lambda number: ENSEMBLE_LINES[number].strip().replace('"', "")
)
def test_b_75_a_map_line_that_is_removed_is_named(repository: Path, number: int):
    lines = list(ENSEMBLE_LINES)
    side, key, value = MAP_LINE.match(lines.pop(number)).groups()  # type: ignore[union-attr]
    (repository / ENSEMBLE / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")

    text = refusal(repository)

    assert text.startswith(f"{ENSEMBLE}: ")
    assert re.search(rf"\b{key if side == 'input' else value}\b", text)


@pytest.mark.parametrize(
    "number", MAP_LINES, ids=lambda number: ENSEMBLE_LINES[number].strip().replace('"', "")
)
def test_b_75_a_map_line_of_an_unknown_tensor_is_named(repository: Path, number: int):
    lines = list(ENSEMBLE_LINES)
    lines[number] = lines[number].replace('key: "', 'key: "X_')
    (repository / ENSEMBLE / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")

    side, key, _ = MAP_LINE.match(lines[number]).groups()  # type: ignore[union-attr]
    assert f"{side}_map {key}: unknown {side}, known are " in refusal(repository)


@pytest.mark.parametrize("number", MAP_LINES)
def test_b_74_a_map_line_that_leads_elsewhere_is_named(repository: Path, number: int):
    lines = list(ENSEMBLE_LINES)
    lines[number] = lines[number].replace('value: "', 'value: "elsewhere_')
    (repository / ENSEMBLE / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")

    side, key, value = MAP_LINE.match(ENSEMBLE_LINES[number]).groups()  # type: ignore[union-attr]
    assert re.search(rf"\b{key if side == 'input' else value}\b", refusal(repository))


@pytest.mark.parametrize(("model", "side", "name"), TENSORS)
def test_b_74_a_tensor_of_another_type_is_named(repository: Path, model: str, side: str, name: str):
    change(
        repository,
        model,
        lambda config: setattr(tensor_of(config, side, name), "data_type", pb.TYPE_UINT8),
    )

    text = refusal(repository)

    assert text.startswith(f"{model}: {side} {name}: got ")
    assert "data_type: TYPE_UINT8" in text


@pytest.mark.parametrize(("model", "side", "name"), TENSORS)
def test_b_74_a_tensor_of_other_dims_is_named(repository: Path, model: str, side: str, name: str):
    change(repository, model, lambda config: tensor_of(config, side, name).dims.append(1))

    assert refusal(repository).startswith(f"{model}: {side} {name}: got ")


@pytest.mark.parametrize(("model", "side", "name"), TENSORS)
def test_b_74_a_tensor_that_is_missing_is_named(repository: Path, model: str, side: str, name: str):
    change(
        repository,
        model,
        lambda config: getattr(config, side).remove(tensor_of(config, side, name)),
    )

    assert refusal(repository) == f"{model}: {side} {name}: missing"


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, side, name in TENSORS if side == "input"]
)
def test_b_77_an_input_that_is_optional_in_one_place_only_is_named(
    repository: Path, model: str, name: str
):
    def flip(config: Any) -> None:
        tensor = tensor_of(config, "input", name)
        tensor.optional = not tensor.optional

    change(repository, model, flip)

    assert refusal(repository).startswith(f"{model}: input {name}: got ")


@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_tensor_that_is_not_declared_is_named(repository: Path, model: str, side: str):
    change(
        repository,
        model,
        lambda config: getattr(config, side).add(name="EXTRA", data_type=pb.TYPE_FP32, dims=[1]),
    )

    assert refusal(repository).startswith(f"{model}: {side} EXTRA: unknown, declared are ")


@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_tensor_that_is_there_twice_is_named(repository: Path, model: str, side: str):
    def repeat(config: Any) -> None:
        tensors = getattr(config, side)
        tensors.append(tensors[0])

    change(repository, model, repeat)

    first = getattr(SPECS[model], f"{side}s")[0].name
    assert refusal(repository).startswith(f"{model}: {side} {first}: unknown, declared are ")


@pytest.mark.parametrize("model", SPECS)
def test_b_74_another_batch_dimension_is_named(repository: Path, model: str):
    change(repository, model, lambda config: setattr(config, "max_batch_size", 0))

    wanted = 1 if model == STREAM else 64
    assert refusal(repository) == f"{model}: max_batch_size: got 0, wanted {wanted}"


def test_a_stream_of_several_texts_is_named(repository: Path):
    change(repository, STREAM, lambda config: setattr(config, "max_batch_size", 64))

    assert refusal(repository) == f"{STREAM}: max_batch_size: got 64, wanted 1"


@pytest.mark.parametrize("model", MEMBERS)
def test_b_85_a_decoupled_member_is_named(repository: Path, model: str):
    change(
        repository,
        model,
        lambda config: setattr(config.model_transaction_policy, "decoupled", True),
    )

    assert refusal(repository).startswith(f"{model}: decoupled: got true, wanted false")


def test_b_85_a_stream_that_is_not_decoupled_is_named(repository: Path):
    change(
        repository,
        STREAM,
        lambda config: setattr(config.model_transaction_policy, "decoupled", False),
    )

    assert refusal(repository).startswith(f"{STREAM}: decoupled: got false, wanted true")


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_a_model_of_another_name_or_backend_is_named(repository: Path, model: str):
    change(repository, model, lambda config: setattr(config, "backend", "onnxruntime"))
    assert refusal(repository) == f"{model}: backend: got 'onnxruntime', wanted 'python'"

    change(repository, model, lambda config: setattr(config, "name", "other"))
    assert refusal(repository) == f"{model}: name: got 'other', wanted '{model}'"


def test_an_ensemble_with_a_name_or_another_platform_is_named(repository: Path):
    change(repository, ENSEMBLE, lambda config: setattr(config, "platform", ""))
    assert refusal(repository) == f"{ENSEMBLE}: platform: got '', wanted 'ensemble'"

    change(repository, ENSEMBLE, lambda config: setattr(config, "name", ENSEMBLE))
    assert refusal(repository).startswith(f"{ENSEMBLE}: name: got '{ENSEMBLE}', wanted none")


WIRES: list[tuple[str, str, str, str, str]] = [
    ("gpt", "input_map", "SEED", "num_text_ids", "input SEED: num_text_ids is TYPE_INT32 [-1], "),
    ("vocos_decoder", "input_map", "HIDDENS", "speaker_embedding", "input HIDDENS: speaker_emb"),
    ("vocos_decoder", "input_map", "SEED", "SEED", "required, but SEED is optional"),
    ("gpt", "input_map", "TEXT_IDS", "hiddens", "reads hiddens, which nothing before it writes"),
    ("gpt", "output_map", "CODES", "hiddens", "output CODES: hiddens exists twice"),
    ("preprocess", "output_map", "SEED_USED", "SEED", "output SEED_USED: SEED exists twice"),
    ("preprocess", "input_map", "LANG", "VOICE", "input LANG: no step reads it"),
    ("vocos_decoder", "input_map", "SEED", "SEED_USED", "output SEED_USED: a step reads it too"),
    ("vocos_decoder", "output_map", "PCM16", "AUDIO", "output PCM16: AUDIO exists twice"),
]


@pytest.mark.parametrize(("model", "side", "key", "value", "text"), WIRES)
def test_b_74_b_76_a_wire_between_tensors_that_do_not_fit_is_named(
    repository: Path, model: str, side: str, key: str, value: str, text: str
):
    def rewire(config: Any) -> None:
        (step,) = (s for s in config.ensemble_scheduling.step if s.model_name == model)
        getattr(step, side)[key] = value

    change(repository, ENSEMBLE, rewire)

    assert text in refusal(repository)


def test_an_ensemble_leaves_what_only_a_stream_sends_unmapped(repository: Path):
    """Nothing of the ensemble's could be sent there; all else must be mapped, see above."""
    names = {spec.name for spec in READ}

    check_configs(repository)

    (step,) = (
        step
        for step in text_format.Parse(
            "\n".join(ENSEMBLE_LINES), pb.ModelConfig()
        ).ensemble_scheduling.step
        if step.model_name == "gpt"
    )
    assert names == {"STREAM_ID", "SEGMENT", "CURSOR", "MIN_CODES"}
    assert set(step.input_map) == {spec.name for spec in GPT.inputs} - names


def test_a_step_of_a_model_that_is_not_there_is_named(repository: Path):
    def rename(config: Any) -> None:
        config.ensemble_scheduling.step[1].model_name = "gtp"

    change(repository, ENSEMBLE, rename)

    assert refusal(repository) == f"{ENSEMBLE}: step 'gtp': no such model in the repository"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_num_sequences", "4", "gpt: parameter max_num_sequences: unknown, known are "),
        ("max_num_seqs", "many", "gpt: parameter max_num_seqs: got 'many'"),
        ("max_waiting", "-1", "gpt: parameter max_waiting: got -1"),
    ],
)
def test_a_parameter_that_the_engine_does_not_take_is_named(
    repository: Path, name: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CHATTTS_MAX_NUM_SEQS", "4")  # hides nothing that the file says

    def set_parameter(config: Any) -> None:
        config.parameters[name].string_value = value

    change(repository, "gpt", set_parameter)

    assert refusal(repository).startswith(text)


def test_a_parameter_that_a_stream_does_not_take_is_named(repository: Path):
    def set_parameter(config: Any) -> None:
        config.parameters["look_ahead_codes"].string_value = "53"

    change(repository, STREAM, set_parameter)

    assert refusal(repository) == (f"{STREAM}: parameter look_ahead_codes: got 53, wanted 1 to 52")


@pytest.mark.parametrize("model", SPECS)
def test_b_94_a_missing_version_directory_is_named(repository: Path, model: str):
    shutil.rmtree(repository / model / "1")

    assert refusal(repository) == f"{repository / model}: the version directory 1 is missing"


@pytest.mark.parametrize("stray", [".ipynb_checkpoints", "model", "2", "01"])
def test_b_94_a_stray_directory_in_a_model_is_named(repository: Path, stray: str):
    (repository / "gpt" / stray).mkdir()

    assert refusal(repository).startswith(f"{repository / 'gpt' / stray}: stray")


def test_a_directory_of_warm_up_data_is_no_stray_one(repository: Path):
    (repository / "preprocess" / "warmup").mkdir()

    check_configs(repository)


@pytest.mark.parametrize("model", SPECS)
def test_a_missing_config_is_named(repository: Path, model: str):
    (repository / model / "config.pbtxt").unlink()

    assert refusal(repository) == f"{repository / model / 'config.pbtxt'}: missing"


def test_an_empty_repository_is_refused(tmp_path: Path):
    assert refusal(tmp_path) == f"{tmp_path / 'preprocess' / 'config.pbtxt'}: missing"


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_a_missing_model_file_is_named(repository: Path, model: str):
    (repository / model / "1" / "model.py").unlink()

    assert refusal(repository) == f"{repository / model / '1' / 'model.py'}: missing"


@pytest.mark.parametrize("content", [b"input [", b"no_such_field: 1", b"\xff"])
def test_a_config_that_cannot_be_parsed_is_named(repository: Path, content: bytes):
    path = repository / "gpt" / "config.pbtxt"
    path.write_bytes(content)

    assert refusal(repository).startswith(f"{path}: cannot be read: ")


def test_a_missing_link_is_named(repository: Path):
    (repository / "chattts").unlink()

    assert refusal(repository) == f"{repository / 'chattts'}: wanted a link to {ENSEMBLE}"


@pytest.mark.parametrize("target", ["gpt", "nowhere"])
def test_a_link_that_leads_elsewhere_is_named(repository: Path, target: str):
    (repository / "chattts").unlink()
    (repository / "chattts").symlink_to(target)

    assert refusal(repository) == (
        f"{repository / 'chattts'}: a link to {target}, wanted one to {ENSEMBLE}"
    )


def test_a_copy_in_place_of_the_link_is_named(repository: Path):
    (repository / "chattts").unlink()
    shutil.copytree(repository / ENSEMBLE, repository / "chattts")

    assert refusal(repository) == f"{repository / 'chattts'}: wanted a link to {ENSEMBLE}"


@pytest.fixture
def with_second_set(repository: Path) -> Path:
    """The committed models, and the same under the name `second`."""
    for model in SPECS:
        directory = repository / second(model)
        shutil.copytree(repository / model, directory)
        config = directory / "config.pbtxt"
        config.write_text(named_config(config.read_text(encoding="utf-8"), "second"))
    return repository


def second(model: str) -> str:
    names = {ENSEMBLE: "second", STREAM: "second_stream"}
    return names.get(model, f"second_{model}")


def set_name_of(config: Any, name: str) -> None:
    config.parameters["ensemble"].string_value = name


def test_a_second_set_passes(with_second_set: Path):
    check_configs(with_second_set)


@pytest.mark.parametrize(("model", "side", "name"), TENSORS)
def test_b_74_a_tensor_of_another_type_in_a_second_set_is_named(
    with_second_set: Path, model: str, side: str, name: str
):
    change(
        with_second_set,
        second(model),
        lambda config: setattr(tensor_of(config, side, name), "data_type", pb.TYPE_UINT8),
    )

    assert refusal(with_second_set).startswith(f"{second(model)}: {side} {name}: got ")


@pytest.mark.parametrize("model", SPECS)
def test_a_model_that_a_second_set_lacks_is_named(with_second_set: Path, model: str):
    shutil.rmtree(with_second_set / second(model))

    assert (
        refusal(with_second_set) == f"{with_second_set / second(model) / 'config.pbtxt'}: missing"
    )


@pytest.mark.parametrize("member", PYTHON_MODELS)
def test_a_second_set_is_checked_in_all_that_the_first_is(with_second_set: Path, member: str):
    directory = second(member)
    model_file = with_second_set / directory / "1" / "model.py"

    model_file.unlink()
    assert refusal(with_second_set) == f"{model_file}: missing"

    change(with_second_set, directory, lambda config: setattr(config, "name", member))
    assert refusal(with_second_set) == f"{directory}: name: got '{member}', wanted '{directory}'"


def test_a_parameter_that_the_engine_of_a_second_set_does_not_take_is_named(with_second_set: Path):
    def set_parameter(config: Any) -> None:
        config.parameters["max_waiting"].string_value = "-1"

    change(with_second_set, "second_gpt", set_parameter)

    assert refusal(with_second_set).startswith("second_gpt: parameter max_waiting: got -1")


def test_a_wire_of_a_second_set_that_is_cut_is_named(with_second_set: Path):
    def cut(config: Any) -> None:
        del config.ensemble_scheduling.step[1].output_map["HIDDENS"]

    change(with_second_set, "second", cut)

    assert refusal(with_second_set) == (
        "second: step second_vocos_decoder: input HIDDENS: reads hiddens, which nothing before it "
        "writes"
    )


@pytest.mark.parametrize(("ensemble", "step"), [("second", "gpt"), (ENSEMBLE, "second_gpt")])
def test_a_step_of_another_sets_member_is_named(with_second_set: Path, ensemble: str, step: str):
    def rename(config: Any) -> None:
        config.ensemble_scheduling.step[1].model_name = step

    change(with_second_set, ensemble, rename)

    assert refusal(with_second_set) == f"{ensemble}: step '{step}': a member of another set"


def test_a_member_that_says_it_is_of_another_set_is_named(with_second_set: Path):
    change(with_second_set, "second_gpt", lambda config: config.parameters.pop("ensemble"))
    assert refusal(with_second_set) == (
        "second_gpt: parameter ensemble: got 'chattts', wanted 'second'"
    )

    change(with_second_set, "gpt", lambda config: set_name_of(config, "second"))
    assert refusal(with_second_set) == "gpt: parameter ensemble: got 'second', wanted 'chattts'"


def test_a_member_of_a_set_that_is_not_there_is_named(repository: Path):
    change(repository, "gpt", lambda config: set_name_of(config, "elsewhere"))

    assert refusal(repository) == "gpt: parameter ensemble: got 'elsewhere', wanted 'chattts'"
