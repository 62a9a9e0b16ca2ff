"""Writes an export: every file into fresh directories, then one rename that makes them live."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import numpy as np
import pybase16384
from tqdm import tqdm

from chattts_triton import __version__
from chattts_triton.constants import MAX_SPEED, MIN_SPEED
from chattts_triton.engine import model_runner
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export.checkpoint import FILES, TOKENIZER, Checkpoint
from chattts_triton.export.gpt_graph import (
    TEXT_HEAD,
    build_gpt_graph,
    build_text_head_graph,
    read_embeddings,
)
from chattts_triton.export.graph import OPSET, external_data_files, save
from chattts_triton.export.upstream import homophones_map, read_spk_stat
from chattts_triton.export.waveform_graph import build_waveform_graph
from chattts_triton.manifest import (
    DEFAULT_ENSEMBLE,
    VERSION_DIRECTORY,
    FileFacts,
    Manifest,
    load_manifest,
    manifest_path,
    sha256_of,
)
from chattts_triton.vocoder import decoder

PRECISIONS = ("fp32", "int8")
MEMBERS = ("preprocess", "gpt", "vocos_decoder")
_OURSELVES = "chattts-triton"
_ENSEMBLE_LINK = "chattts"
_SPECIAL_TOKENS = (
    *("[Stts]", "[Ptts]", "[Sbreak]", "[Pbreak]", "[Ebreak]", "[spk_emb]", "[empty_spk]"),
    *("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[laugh]", "[break_0]"),
    *(f"[speed_{speed}]" for speed in range(MIN_SPEED, MAX_SPEED + 1)),
)
_VERSIONED_PACKAGES = ("ChatTTS", "numpy", "onnx", "onnxruntime", "torch")


Check = Callable[[Path, Path, Manifest], None]


def export(
    checkpoint_directory: Path, repository: Path, precision: str, check: Check | None = None
) -> Manifest:
    """Make `repository` a complete, servable model repository of the checkpoint.

    `check` is called with checkpoint, repository and manifest before the export goes live, and
    prevents that by raising.

    Until the very last step nothing that a running server uses is touched, and a failure or a
    killed process leaves the former export in force.

    Raises:
        InvalidRequestError: `precision` is not one of PRECISIONS.
        ModelLoadError: The checkpoint is incomplete or damaged, or the files cannot be written.
    """
    if precision not in PRECISIONS:
        raise InvalidRequestError.of("precision", precision, " or ".join(PRECISIONS))
    checkpoint = Checkpoint.open(checkpoint_directory)
    export_id = f"{precision}-{uuid.uuid4().hex[:12]}"
    with _staged(repository, export_id) as directories:
        try:
            _write_all(checkpoint, precision, directories)
            manifest = _describe(checkpoint, precision, export_id, repository, directories)
            if check:
                check(checkpoint_directory, repository, manifest)
            _publish(repository, manifest)
        except OSError as error:
            raise ModelLoadError(f"{repository}: cannot be written: {error}") from error
    _remove_former_exports(repository, export_id)
    return manifest


def is_export_of(repository: Path, checkpoint_directory: Path, precision: str) -> bool:
    """Whether the live export is of these very files, in this precision, by this version of us."""
    try:
        manifest = load_manifest(repository)
    except ModelLoadError:
        return False
    return (
        manifest.precision == precision
        and manifest.versions.get(_OURSELVES) == __version__
        and all(
            target.is_file() and target.read_bytes() == source.read_bytes()
            for source, target in _template_files(repository)
        )
        and all(
            sha256_of(checkpoint_directory / name) == manifest.checkpoint.get(name)
            for name in FILES
        )
    )


@contextmanager
def _staged(repository: Path, export_id: str) -> Iterator[dict[str, Path]]:
    """Fresh directories for each member's files; removed again if anything fails."""
    directories = {
        member: repository / member / VERSION_DIRECTORY / export_id for member in MEMBERS
    }
    try:
        try:
            _copy_template(repository)
            for directory in directories.values():
                directory.mkdir(parents=True)
        except OSError as error:
            raise ModelLoadError(f"{repository}: cannot be written: {error}") from error
        yield directories
    except BaseException:
        for directory in directories.values():
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _write_all(checkpoint: Checkpoint, precision: str, directories: dict[str, Path]) -> None:
    steps: list[tuple[str, Callable[[], None]]] = [
        ("tokenizer and tables", lambda: _write_preprocess(checkpoint, directories["preprocess"])),
        ("embeddings", lambda: _write_embeddings(checkpoint, directories["gpt"])),
        (
            f"gpt, {precision}",
            lambda: save(
                build_gpt_graph(checkpoint, precision), directories["gpt"] / model_runner.FILE_NAME
            ),
        ),
        (
            "text head",
            lambda: save(build_text_head_graph(checkpoint), directories["gpt"] / TEXT_HEAD),
        ),
        (
            "waveform",
            lambda: save(
                build_waveform_graph(checkpoint), directories["vocos_decoder"] / decoder.FILE_NAME
            ),
        ),
    ]
    with tqdm(steps, desc="export", unit="part") as bar:
        for name, write in bar:
            bar.set_postfix_str(name)
            write()


def _write_preprocess(checkpoint: Checkpoint, directory: Path) -> None:
    shutil.copyfile(checkpoint.directory / TOKENIZER, directory / "tokenizer.json")
    np.save(directory / "speaker_statistics.npy", speaker_statistics(checkpoint))
    (directory / "homophones.json").write_text(
        json.dumps(homophones_map(), ensure_ascii=False), encoding="utf-8"
    )


def speaker_statistics(checkpoint: Checkpoint) -> np.ndarray[tuple[int, int], np.dtype[np.float16]]:
    """Mean and deviation of the speaker vectors, (2, hidden) float16.

    Raises:
        ModelLoadError: The statistics are of another width than the checkpoint.
    """
    data = pybase16384.decode_from_string(read_spk_stat(checkpoint.directory))
    hidden_size = checkpoint.dims.hidden_size
    if len(data) != 2 * hidden_size * np.dtype(np.float16).itemsize:
        raise ModelLoadError(
            f"{checkpoint.directory}: speaker statistics of {len(data) // 4} dims, the checkpoint "
            f"has {hidden_size}; give it an asset/spk_stat.txt of its own"
        )
    deviation, mean = np.frombuffer(data, dtype=np.float16).reshape(2, hidden_size)
    return np.stack([mean, deviation])


def _write_embeddings(checkpoint: Checkpoint, directory: Path) -> None:
    text, codes = read_embeddings(checkpoint)
    np.save(directory / model_runner.TEXT_EMBEDDINGS, text)
    np.save(directory / model_runner.CODE_EMBEDDINGS, codes)


def _describe(
    checkpoint: Checkpoint,
    precision: str,
    export_id: str,
    repository: Path,
    directories: dict[str, Path],
) -> Manifest:
    paths = sorted(path for directory in directories.values() for path in directory.iterdir())
    for path in paths:
        if path.suffix == ".onnx":
            _check_external_data(path)
    return Manifest(
        export_id=export_id,
        precision=precision,
        dims=checkpoint.dims,
        special_ids=_special_ids(checkpoint.directory / TOKENIZER),
        files={
            str(path.relative_to(repository)): FileFacts(path.stat().st_size, sha256_of(path))
            for path in paths
        },
        checkpoint={name: sha256_of(checkpoint.directory / name) for name in FILES},
        versions={
            _OURSELVES: __version__,
            **{name: metadata.version(name) for name in _VERSIONED_PACKAGES},
        },
        opset=OPSET,
    )


def _check_external_data(path: Path) -> None:
    for name in external_data_files(path):
        if not (path.parent / name).is_file() or Path(name).name != name:
            raise ModelLoadError(f"{path}: its external data {name} does not lie beside it")


def _special_ids(tokenizer: Path) -> dict[str, int]:
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    added = {token["content"]: int(token["id"]) for token in content.get("added_tokens", [])}
    missing = [token for token in _SPECIAL_TOKENS if token not in added]
    if missing:
        raise ModelLoadError(f"{tokenizer}: the control token {missing[0]} is missing")
    return {token: added[token] for token in _SPECIAL_TOKENS}


def _publish(repository: Path, manifest: Manifest) -> None:
    path = manifest_path(repository)
    temporary = path.with_suffix(f".{manifest.export_id}")
    temporary.write_text(manifest.to_json(), encoding="utf-8")
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _remove_former_exports(repository: Path, export_id: str) -> None:
    for member in MEMBERS:
        for path in (repository / member / VERSION_DIRECTORY).iterdir():
            if path.is_dir() and path.name != export_id and path.name.startswith(PRECISIONS):
                shutil.rmtree(path)
    for stale in manifest_path(repository).parent.glob("manifest.*-*"):
        stale.unlink()
    load_manifest(repository)


def template_directory() -> Path:
    """Where config.pbtxt and model.py of every model come from."""
    packaged = Path(__file__).parents[1] / "repository_template"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "model_repository"


def _copy_template(repository: Path) -> None:
    for source, target in _template_files(repository):
        if source.resolve() != target.resolve():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    manifest_path(repository).parent.mkdir(parents=True, exist_ok=True)
    link = repository / _ENSEMBLE_LINK
    if not link.is_symlink():
        link.symlink_to(DEFAULT_ENSEMBLE)


def _template_files(repository: Path) -> list[tuple[Path, Path]]:
    """Every config.pbtxt and model.py of ours, and where it belongs in a repository."""
    names = [f"{model}/config.pbtxt" for model in (*MEMBERS, DEFAULT_ENSEMBLE)]
    names += [f"{member}/{VERSION_DIRECTORY}/model.py" for member in MEMBERS]
    return [(template_directory() / name, repository / name) for name in names]
