"""Reads a checkpoint in the ChatTTS layout: dims, and tensors checked for name, shape and dtype."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from chattts_triton.constants import NUM_VQ
from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import Dims

Array = npt.NDArray[np.float32]

GPT_CONFIG = "asset/gpt/config.json"
GPT = "asset/gpt/model.safetensors"
EMBED = "asset/Embed.safetensors"
DECODER = "asset/Decoder.safetensors"
DVAE = "asset/DVAE.safetensors"
VOCOS = "asset/Vocos.safetensors"
TOKENIZER = "asset/tokenizer/tokenizer.json"
TOKENIZER_CONFIG = "asset/tokenizer/tokenizer_config.json"
SPECIAL_TOKENS = "asset/tokenizer/special_tokens_map.json"
VOICES = "asset/voices.json"  # ours: named voices that belong to one checkpoint
FILES = (GPT_CONFIG, GPT, EMBED, DECODER, DVAE, VOCOS, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS)

_FLOAT_DTYPES = {"F32", "F16", "BF16"}


def check_layout(checkpoint: Path) -> None:
    """Make sure that every file of the layout is there.

    Raises:
        ModelLoadError: A file is missing; the message names the first.
    """
    for name in FILES:
        if not (checkpoint / name).is_file():
            raise ModelLoadError(f"{checkpoint / name}: missing; not a ChatTTS checkpoint")


class TensorFile:
    """One safetensors file, its tensors read one at a time as float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path}: cannot be read: {error}") from error

    def __enter__(self) -> TensorFile:
        self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def names(self) -> set[str]:
        """Names of all tensors in the file."""
        return set(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, read from the header only."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> Array:
        """One tensor as float32.

        Raises:
            ModelLoadError: It is missing, of another shape, or not of a float dtype.
        """
        header = self._slice(name)
        if tuple(header.get_shape()) != shape:
            raise ModelLoadError(
                f"{self._path}: tensor {name} has shape {list(header.get_shape())}, "
                f"wanted {list(shape)}"
            )
        if header.get_dtype() not in _FLOAT_DTYPES:
            raise ModelLoadError(
                f"{self._path}: tensor {name} is {header.get_dtype()}, "
                f"wanted one of {', '.join(sorted(_FLOAT_DTYPES))}"
            )
        tensor: torch.Tensor = self._file.get_tensor(name)
        array: Array = tensor.to(torch.float32).numpy()
        if not np.isfinite(array).all():
            raise ModelLoadError(f"{self._path}: tensor {name} holds NaN or infinity")
        return array

    def read_weight_norm(self, prefix: str, shape: tuple[int, int]) -> Array:
        """A linear weight (out, in) stored as magnitude and direction, multiplied out.

        Source:
            torch.nn.utils.parametrizations.weight_norm with dim 0.
        """
        magnitude = self.read(f"{prefix}.parametrizations.weight.original0", (shape[0], 1))
        direction = self.read(f"{prefix}.parametrizations.weight.original1", shape)
        weight = torch._weight_norm(torch.from_numpy(direction), torch.from_numpy(magnitude), 0)
        return weight.numpy()

    def _slice(self, name: str) -> Any:
        if name not in self.names():
            raise ModelLoadError(f"{self._path}: tensor {name} is missing")
        return self._file.get_slice(name)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose layout and GPT dims have been read."""

    directory: Path
    dims: Dims

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Check the layout and read the dims from gpt/config.json and the embeddings' shapes.

        Raises:
            ModelLoadError: A file is missing or malformed, or a dim is not what ChatTTS allows.
        """
        check_layout(directory)
        config = _read_config(directory / GPT_CONFIG)
        with TensorFile(directory / EMBED) as embed:
            num_text_tokens, _ = _two(embed.shape("emb_text.weight"), directory / EMBED)
            num_audio_tokens, _ = _two(embed.shape("emb_code.0.weight"), directory / EMBED)
        return cls(directory, _dims(directory, config, num_text_tokens, num_audio_tokens))

    def tensors(self, name: str) -> TensorFile:
        """Open one of the safetensors files by its name in the layout."""
        return TensorFile(self.directory / name)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path}: wanted a JSON object")
    return config


def _dims(
    directory: Path, config: Mapping[str, Any], num_text_tokens: int, num_audio_tokens: int
) -> Dims:
    path = directory / GPT_CONFIG
    # transformers 5 writes the rotary base into a dict of its own, older ones beside the rest.
    rope = config.get("rope_parameters") or {}
    try:
        dims = Dims(
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_hidden_layers=int(config["num_hidden_layers"]),
            num_attention_heads=int(config["num_attention_heads"]),
            num_vq=NUM_VQ,
            num_audio_tokens=num_audio_tokens,
            num_text_tokens=num_text_tokens,
            max_position_embeddings=int(config.get("max_position_embeddings", 4096)),
            rope_theta=float(config.get("rope_theta", rope.get("rope_theta", 10_000.0))),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        )
        num_key_value_heads = int(config.get("num_key_value_heads", dims.num_attention_heads))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{path}: missing or malformed key: {error}") from error
    if num_key_value_heads != dims.num_attention_heads:
        raise ModelLoadError(f"{path}: num_key_value_heads differs from num_attention_heads")
    if dims.hidden_size % dims.num_attention_heads or dims.head_size % 8:
        raise ModelLoadError(
            f"{path}: hidden_size {dims.hidden_size} over {dims.num_attention_heads} heads "
            "does not give a head size that is a multiple of 8"
        )
    return dims


def _two(shape: tuple[int, ...], path: Path) -> tuple[int, int]:
    if len(shape) != 2:
        raise ModelLoadError(f"{path}: an embedding has shape {list(shape)}, wanted two dims")
    return shape[0], shape[1]
