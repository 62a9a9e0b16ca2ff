"""`manifest.json`: the facts of an export, and the one place that says which files are live.

An export writes each member's files into a fresh directory `<member>/1/<export_id>/` and then
replaces `<ensemble>/1/manifest.json` in one rename. Whoever loads asks the manifest where its
files are, so an export that was killed half-way leaves the former one in force.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from chattts_triton.errors import ModelLoadError

FILE_NAME = "manifest.json"
VERSION_DIRECTORY = "1"
DEFAULT_ENSEMBLE = "chattts_ensemble"
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
    """What one export holds. `files` maps `<member>/1/<export_id>/<name>` to its facts."""

    export_id: str
    precision: str
    dims: Dims
    special_ids: dict[str, int]
    files: dict[str, FileFacts]
    checkpoint: dict[str, str]
    versions: dict[str, str]
    opset: int

    def member_directory(self, repository: Path, member: str) -> Path:
        """The directory that holds this export's files of `member`."""
        return repository / member / VERSION_DIRECTORY / self.export_id

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


def manifest_path(repository: Path, ensemble: str = DEFAULT_ENSEMBLE) -> Path:
    """Where the manifest of an ensemble stands."""
    return repository / ensemble / VERSION_DIRECTORY / FILE_NAME


def load_manifest(repository: Path, ensemble: str = DEFAULT_ENSEMBLE) -> Manifest:
    """Read the manifest of an exported ensemble and check the sizes of its files.

    Raises:
        ModelLoadError: Nothing was exported there, the file is damaged, or a file is missing.
    """
    path = manifest_path(repository, ensemble)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(
            f"{repository}: no exported model (run `chattts-triton export` first)"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    manifest = _parse(path, content)
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
