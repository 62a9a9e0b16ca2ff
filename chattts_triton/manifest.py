"""`manifest.json`: the facts of an export, and the one place that says which files are live.

An export writes each member's files into a fresh directory `<member>/1/<export_id>/` and then
replaces `<ensemble>/1/manifest.json` in one rename. Whoever loads asks the manifest where its
files are, so an export that was killed half-way leaves the former one in force.

A repository may hold several exports side by side, each a set of models of its own: an ensemble,
its members and the stream over them, named after it. All but the ensemble `chattts` are in the
directory of their name.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.tensors import CHATTTS, CHATTTS_STREAM, GPT, PREPROCESS, VOCOS_DECODER

FILE_NAME = "manifest.json"
PRECISIONS = ("fp32", "int8", "fp16")
VERSION_DIRECTORY = "1"
DEFAULT_NAME = CHATTTS.name
DEFAULT_ENSEMBLE = "chattts_ensemble"  # the directory that the link `chattts` leads to
STREAM_NAME = CHATTTS_STREAM.name
MEMBERS = (PREPROCESS.name, GPT.name, VOCOS_DECODER.name)  # those that an export has files for
PYTHON_MODELS = (*MEMBERS, STREAM_NAME)
NAME_PARAMETER = "ensemble"  # of a member's config.pbtxt: its set, where that is not the default
_STREAM_SUFFIX = STREAM_NAME.removeprefix(DEFAULT_NAME)
_TAKEN_NAMES = (*MEMBERS, DEFAULT_ENSEMBLE)
_TAKEN_SUFFIXES = (*(f"_{member}" for member in MEMBERS), _STREAM_SUFFIX)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Dims:
    """Sizes of the exported graphs, all read from the checkpoint."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_vq: int
    num_audio_tokens: int
    num_text_tokens: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def eos_code(self) -> int:
        """The code that ends a sequence: the last of each codebook."""
        return self.num_audio_tokens - 1


@dataclass(frozen=True)
class FileFacts:
    """Size and hash of one exported file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What one export holds.

    Attributes:
        files: The facts of every file, by its path in the repository.
        name: The set of models that the export is of, which is what its ensemble is called by.
    """

    export_id: str
    precision: str
    dims: Dims
    special_ids: dict[str, int]
    files: dict[str, FileFacts]
    checkpoint: dict[str, str]
    versions: dict[str, str]
    opset: int
    name: str = DEFAULT_NAME

    def member_directory(self, repository: Path, member: str) -> Path:
        """The directory that holds this export's files of `member`, one of MEMBERS."""
        return repository / member_name(self.name, member) / VERSION_DIRECTORY / self.export_id

    def verify(self, repository: Path, *, hashes: bool = False) -> None:
        """Hold the files against the manifest: sizes always, hashes on request.

        Raises:
            ModelLoadError: A file is missing, cut short or changed; the message names it.
        """
        for name, facts in self.files.items():
            path = repository / name
            if not path.is_file():
                raise ModelLoadError(f"{path}: missing; export the checkpoint again")
            size = path.stat().st_size
            if size != facts.size_bytes:
                raise ModelLoadError(f"{path}: {size} bytes, manifest says {facts.size_bytes}")
            if hashes and (got := sha256_of(path)) != facts.sha256:
                raise ModelLoadError(f"{path}: SHA-256 {got}, manifest says {facts.sha256}")

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def check_name(name: str) -> None:
    """Refuse what no set of models can be called.

    Raises:
        InvalidRequestError: `name` is malformed, or it is or could be that of another model.
    """
    if not _NAME.fullmatch(name):
        wanted = "1 to 64 letters, digits, _ or -, with a letter or a digit first"
        raise InvalidRequestError.of("name", name, wanted)
    if name in _TAKEN_NAMES:
        raise InvalidRequestError.of("name", name, "one that is not taken")
    if name.endswith(_TAKEN_SUFFIXES):
        wanted = "one that does not end like another model's: " + ", ".join(_TAKEN_SUFFIXES)
        raise InvalidRequestError.of("name", name, wanted)


def ensemble_directory(name: str) -> str:
    """The directory of the ensemble that is called `name`."""
    return DEFAULT_ENSEMBLE if name == DEFAULT_NAME else name


def member_name(name: str, member: str) -> str:
    """What `member`, one of PYTHON_MODELS, is called in the set `name`; so is its directory."""
    if name == DEFAULT_NAME:
        return member
    return f"{name}{_STREAM_SUFFIX}" if member == STREAM_NAME else f"{name}_{member}"


def manifest_path(repository: Path, name: str = DEFAULT_NAME) -> Path:
    """Where the manifest of a set of models stands."""
    return repository / ensemble_directory(name) / VERSION_DIRECTORY / FILE_NAME


def load_manifest(repository: Path, name: str = DEFAULT_NAME) -> Manifest:
    """Read the manifest of an exported set of models and check the sizes of its files.

    Raises:
        ModelLoadError: Nothing was exported under that name, the file is damaged or another
            set's, or a file is missing.
    """
    path = manifest_path(repository, name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        where = repository if name == DEFAULT_NAME else path.parents[1]
        raise ModelLoadError(
            f"{where}: no exported model (run `chattts-triton export` first)"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    manifest = _parse(path, content)
    if manifest.name != name:
        raise ModelLoadError(f"{path}: name: got {manifest.name!r}, wanted {name!r}")
    manifest.verify(repository)
    return manifest


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _parse(path: Path, content: Any) -> Manifest:
    known = {field.name for field in fields(Manifest)}
    if not isinstance(content, dict) or set(content) != known:
        raise ModelLoadError(f"{path}: wanted the keys {sorted(known)}; export again")
    try:
        content["dims"] = Dims(**content["dims"])
        content["files"] = {name: FileFacts(**facts) for name, facts in content["files"].items()}
        return Manifest(**content)
    except (TypeError, AttributeError) as error:
        raise ModelLoadError(f"{path}: of another version: {error}; export again") from error
