"""How many threads Triton needs for the calls that Python models make of other models.

A stream is such a model: nearly all of its time it waits in a call of a member, and each call that
waits holds a thread of tritonserver. With too few of them streams would wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from chattts_triton.config import StreamConfig, read_config
from chattts_triton.manifest import STREAM_NAME

NUM_SPARE_THREADS = 16  # for the calls by which streams are cancelled while others wait


def num_call_threads(repository: Path, environment: Mapping[str, str]) -> int:
    """More threads than `chattts_stream` may hold at the same time.

    Triton has one number for all its models, and it is fixed at the start. So other sets of models
    should allow no more streams than the set `chattts`.

    Args:
        repository: A repository that has been checked.
        environment: What the models will get.

    Raises:
        ModelLoadError: A parameter of the model is malformed.
    """
    config = (repository / STREAM_NAME / "config.pbtxt").read_text(encoding="utf-8")
    parameters = text_format.Parse(config, model_config_pb2.ModelConfig()).parameters
    values = {name: value.string_value for name, value in parameters.items()}
    return read_config(StreamConfig, values, environment).max_streams + NUM_SPARE_THREADS
