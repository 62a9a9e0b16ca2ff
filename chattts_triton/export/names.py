"""The models of a named set: the template's configs under its names, none of them another's."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2 as pb

from chattts_triton.errors import InvalidRequestError
from chattts_triton.manifest import (
    NAME_PARAMETER,
    PYTHON_MODELS,
    ensemble_directory,
    member_name,
)

CONFIG_FILE = "config.pbtxt"


def named_config(template: str, name: str) -> str:
    """The config.pbtxt of a model of the default set, rewritten for the set `name`."""
    config = text_format.Parse(template, pb.ModelConfig())
    if config.name:  # a member: an ensemble takes its name from its directory
        config.name = member_name(name, config.name)
        config.parameters[NAME_PARAMETER].string_value = name
    for step in config.ensemble_scheduling.step:
        step.model_name = member_name(name, step.model_name)
    return f"{_head_line(name)}\n{text_format.MessageToString(config)}"


def check_not_taken(repository: Path, name: str) -> None:
    """Refuse a named set that would write over a model which no export of that name has written.

    Raises:
        InvalidRequestError: The repository has such a model; the message names it.
    """
    for model in (
        ensemble_directory(name),
        *(member_name(name, member) for member in PYTHON_MODELS),
    ):
        directory = repository / model
        if directory.is_symlink() or not _is_ours(directory / CONFIG_FILE, name):
            raise InvalidRequestError.of(
                "name", name, f"one that leaves the repository's own model '{model}' alone"
            )


def _is_ours(config: Path, name: str) -> bool:
    if not config.exists():
        return True
    return config.read_bytes().startswith(f"{_head_line(name)}\n".encode())


def _head_line(name: str) -> str:
    return f"# Written by `chattts-triton export --name {name}`, which writes over any change."
