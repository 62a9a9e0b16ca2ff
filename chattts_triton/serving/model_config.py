"""The linter of a model repository: finds what is wrong in it before Triton does, and names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2 as pb

from chattts_triton.config import (
    EngineConfig,
    PreprocessConfig,
    StreamConfig,
    VocoderConfig,
    read_config,
)
from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import (
    DEFAULT_ENSEMBLE,
    DEFAULT_NAME,
    NAME_PARAMETER,
    VERSION_DIRECTORY,
    ensemble_directory,
    member_name,
)
from chattts_triton.tensors import (
    CHATTTS,
    CHATTTS_STREAM,
    GPT,
    MAX_BATCH_SIZE,
    PREPROCESS,
    READ,
    VOCOS_DECODER,
    ModelSpec,
    TensorSpec,
)

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.py"

_PYTHON_MODELS = (PREPROCESS, GPT, VOCOS_DECODER, CHATTTS_STREAM)
_CONFIGS: Mapping[str, Any] = {
    PREPROCESS.name: PreprocessConfig,
    GPT.name: EngineConfig,
    VOCOS_DECODER.name: VocoderConfig,
    CHATTTS_STREAM.name: StreamConfig,
}
_ONE_TEXT = 1  # a request
_NOT_MAPPED = frozenset(tensor.name for tensor in READ)
_KNOWN_DIRECTORIES = (VERSION_DIRECTORY, "warmup")  # Triton reads warm-up data from the second


def check_configs(repository: Path) -> None:
    """Hold every model of every set against `tensors`, and each ensemble against its members.

    Raises:
        ModelLoadError: Something does not fit; the message names the model and the tensor.
    """
    configs = {path.parent.name: _read(path) for path in _config_files(repository)}
    for directory in configs:
        _check_directory(repository / directory)
    names = sorted({DEFAULT_NAME, *(_set_name(config) for config in configs.values())})
    for name in names:
        _check_set(repository, name, configs)
    _check_link(repository)
    for name in names:
        _check_steps(name, configs, others=[other for other in names if other != name])


def _set_name(config: Any) -> str:
    """The set that a member says it belongs to."""
    if NAME_PARAMETER not in config.parameters:
        return DEFAULT_NAME
    name: str = config.parameters[NAME_PARAMETER].string_value
    return name


def _check_set(repository: Path, name: str, configs: Mapping[str, Any]) -> None:
    for spec in _PYTHON_MODELS:
        directory = repository / member_name(name, spec.name)
        if directory.name not in configs:
            raise ModelLoadError(f"{directory / CONFIG_FILE}: missing")
        _check_python_model(directory, configs[directory.name], spec, name)
    ensemble = ensemble_directory(name)
    if ensemble not in configs:
        raise ModelLoadError(f"{repository / ensemble / CONFIG_FILE}: missing")
    _check_ensemble(ensemble, configs[ensemble], configs)


def _check_steps(name: str, configs: Mapping[str, Any], *, others: Sequence[str]) -> None:
    ensemble = ensemble_directory(name)
    foreign = {member_name(other, spec.name) for other in others for spec in _PYTHON_MODELS}
    for step in configs[ensemble].ensemble_scheduling.step:
        if step.model_name in foreign:
            raise ModelLoadError(f"{ensemble}: step '{step.model_name}': a member of another set")


def _config_files(repository: Path) -> list[Path]:
    # A link is checked as the directory that it leads to.
    return sorted(
        path for path in repository.glob(f"*/{CONFIG_FILE}") if not path.parent.is_symlink()
    )


def _read(path: Path) -> Any:
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error


def _check_directory(model: Path) -> None:
    """Triton takes every directory in a model's for a version, and loads the newest."""
    names = sorted(path.name for path in model.iterdir() if path.is_dir())
    if VERSION_DIRECTORY not in names:
        raise ModelLoadError(f"{model}: the version directory {VERSION_DIRECTORY} is missing")
    stray = [name for name in names if name not in _KNOWN_DIRECTORIES]
    if stray:
        raise ModelLoadError(f"{model / stray[0]}: stray, wanted no version but 1 in a model")


def _check_link(repository: Path) -> None:
    link = repository / DEFAULT_NAME
    if not link.is_symlink():
        raise ModelLoadError(f"{link}: wanted a link to {DEFAULT_ENSEMBLE}")
    if link.resolve() != (repository / DEFAULT_ENSEMBLE).resolve():
        raise ModelLoadError(
            f"{link}: a link to {link.readlink()}, wanted one to {DEFAULT_ENSEMBLE}"
        )


def _check_python_model(directory: Path, config: Any, spec: ModelSpec, set_name: str) -> None:
    model = directory.name
    if config.name not in ("", model):
        raise ModelLoadError(f"{model}: name: got {config.name!r}, wanted {model!r}")
    if config.backend != "python":
        raise ModelLoadError(f"{model}: backend: got {config.backend!r}, wanted 'python'")
    model_file = directory / VERSION_DIRECTORY / MODEL_FILE
    if not model_file.is_file():
        raise ModelLoadError(f"{model_file}: missing")
    _check_decoupled(model, config, spec)
    _check_tensors(model, config, spec)
    if (got_name := _set_name(config)) != set_name:
        raise ModelLoadError(
            f"{model}: parameter {NAME_PARAMETER}: got {got_name!r}, wanted {set_name!r}"
        )
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    parameters.pop(NAME_PARAMETER, None)
    if kind := _CONFIGS.get(spec.name):
        try:
            read_config(kind, parameters, environment={})
        except ModelLoadError as error:
            raise ModelLoadError(f"{model}: {error}") from error


def _check_decoupled(model: str, config: Any, spec: ModelSpec) -> None:
    is_decoupled = config.model_transaction_policy.decoupled
    if spec is CHATTTS_STREAM and not is_decoupled:
        raise ModelLoadError(
            f"{model}: decoupled: got false, wanted true: a request has many responses"
        )
    if spec is not CHATTTS_STREAM and is_decoupled:
        raise ModelLoadError(
            f"{model}: decoupled: got true, wanted false: a decoupled member makes the "
            "ensemble decoupled, and that refuses unary calls"
        )


def _check_tensors(model: str, config: Any, spec: ModelSpec) -> None:
    wanted = _ONE_TEXT if spec is CHATTTS_STREAM else MAX_BATCH_SIZE
    if config.max_batch_size != wanted:
        raise ModelLoadError(
            f"{model}: max_batch_size: got {config.max_batch_size}, wanted {wanted}"
        )
    _check_side(f"{model}: input", config.input, [_input(each) for each in spec.inputs])
    _check_side(f"{model}: output", config.output, [_output(each) for each in spec.outputs])


def _input(spec: TensorSpec) -> Any:
    return pb.ModelInput(**_common(spec), optional=spec.optional)


def _output(spec: TensorSpec) -> Any:
    return pb.ModelOutput(**_common(spec))


def _common(spec: TensorSpec) -> dict[str, Any]:
    data_type = pb.DataType.Value(f"TYPE_{spec.dtype}")
    return {"name": spec.name, "data_type": data_type, "dims": spec.shape}


def _check_side(where: str, got: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Compare the inputs, or the outputs, of a model with the declared ones, in any order."""
    found = {tensor.name: tensor for tensor in got}
    for tensor in wanted:
        if tensor.name not in found:
            raise ModelLoadError(f"{where} {tensor.name}: missing")
        if found[tensor.name] != tensor:
            raise ModelLoadError(
                f"{where} {tensor.name}: got {_one_line(found[tensor.name])}, "
                f"wanted {_one_line(tensor)}"
            )
    known = [tensor.name for tensor in wanted]
    for tensor in got:
        if tensor.name not in known:
            raise ModelLoadError(
                f"{where} {tensor.name}: unknown, declared are {', '.join(sorted(known))}"
            )
        known.remove(tensor.name)


def _one_line(tensor: Any) -> str:
    text: str = text_format.MessageToString(tensor, as_one_line=True)
    return text


def _check_ensemble(name: str, ensemble: Any, configs: Mapping[str, Any]) -> None:
    if ensemble.name:
        raise ModelLoadError(
            f"{name}: name: got {ensemble.name!r}, wanted none: its directory or a link names it"
        )
    if ensemble.platform != "ensemble":
        raise ModelLoadError(f"{name}: platform: got {ensemble.platform!r}, wanted 'ensemble'")
    _check_tensors(name, ensemble, CHATTTS)
    _Wiring(name, ensemble, configs).check()


class _Wiring:
    """Follows the tensors of an ensemble from step to step, in the order of its config."""

    def __init__(self, name: str, ensemble: Any, configs: Mapping[str, Any]) -> None:
        self._name = name
        self._ensemble = ensemble
        self._configs = configs
        self._sources = {tensor.name: tensor for tensor in ensemble.input}
        self._read: set[str] = set()

    def check(self) -> None:
        for step in self._ensemble.ensemble_scheduling.step:
            member = self._configs.get(step.model_name)
            if member is None or member is self._ensemble:
                raise self._error(f"step {step.model_name!r}", "no such model in the repository")
            self._check_names(step.model_name, "input", step.input_map, member.input)
            self._check_names(step.model_name, "output", step.output_map, member.output)
            for tensor in member.input:
                if tensor.name not in _NOT_MAPPED:
                    self._read_tensor(step.model_name, tensor, step.input_map)
            for tensor in member.output:
                if tensor.name in step.output_map:
                    self._write_tensor(step.model_name, tensor, step.output_map[tensor.name])
        self._check_ends()

    def _check_names(self, model: str, side: str, mapped: Mapping[str, str], known: Any) -> None:
        names = [tensor.name for tensor in known]
        for key in mapped:
            if key not in names:
                raise self._error(
                    f"step {model}: {side}_map {key}", f"unknown {side}, known are {names}"
                )

    def _read_tensor(self, model: str, tensor: Any, input_map: Mapping[str, str]) -> None:
        where = f"step {model}: input {tensor.name}"
        if tensor.name not in input_map:
            raise self._error(where, "not mapped")
        source_name = input_map[tensor.name]
        if source_name not in self._sources:
            raise self._error(where, f"reads {source_name}, which nothing before it writes")
        source = self._sources[source_name]
        self._check_edge(where, source_name, source, tensor)
        if getattr(source, "optional", False) and not tensor.optional:
            raise self._error(where, f"required, but {source_name} is optional")
        self._read.add(source_name)

    def _write_tensor(self, model: str, tensor: Any, target_name: str) -> None:
        if target_name in self._sources:
            raise self._error(f"step {model}: output {tensor.name}", f"{target_name} exists twice")
        self._sources[target_name] = tensor

    def _check_edge(self, where: str, source_name: str, source: Any, target: Any) -> None:
        fits = len(source.dims) == len(target.dims) and all(
            -1 in (got, wanted) or got == wanted
            for got, wanted in zip(source.dims, target.dims, strict=True)
        )
        if source.data_type != target.data_type or not fits:
            raise self._error(where, f"{source_name} is {_kind(source)}, wanted {_kind(target)}")

    def _check_ends(self) -> None:
        for tensor in self._ensemble.input:
            if tensor.name not in self._read:
                raise self._error(f"input {tensor.name}", "no step reads it")
        for tensor in self._ensemble.output:
            where = f"output {tensor.name}"
            if tensor.name not in self._sources:
                raise self._error(where, "no step writes it")
            self._check_edge(where, tensor.name, self._sources[tensor.name], tensor)
            if tensor.name in self._read:
                # Triton leaves out the steps that no wanted output needs, then takes what they
                # read for unwanted, and fails with "unexpected deadlock".
                raise self._error(
                    where, "a step reads it too, so it could not be asked for without the others"
                )

    def _error(self, where: str, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._name}: {where}: {what}")


def _kind(tensor: Any) -> str:
    return f"{pb.DataType.Name(tensor.data_type)} {list(tensor.dims)}"
