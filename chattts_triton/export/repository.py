"""Writes an export: every file beside those in use, then renames that make them live."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO

import numpy as np
import pybase16384
from tqdm import tqdm

from chattts_triton import __version__, ort
from chattts_triton.constants import MAX_SPEED, MIN_SPEED
from chattts_triton.engine import kv_cache, model_runner
from chattts_triton.engine.placement import CUDA_PRECISIONS
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export.checkpoint import FILES, TOKENIZER, VOICES, Checkpoint
from chattts_triton.export.dvae_graph import build_dvae_encoder_graph
from chattts_triton.export.gpt_graph import (
    build_gpt_graph,
    build_text_head_graph,
    read_embeddings,
)
from chattts_triton.export.graph import OPSET, external_data_files, save
from chattts_triton.export.kv_move_graph import build_kv_move_graph
from chattts_triton.export.names import CONFIG_FILE, check_not_taken, named_config
from chattts_triton.export.upstream import SPK_STAT, homophones_map, read_spk_stat
from chattts_triton.export.waveform_graph import build_waveform_graph
from chattts_triton.manifest import (
    DEFAULT_ENSEMBLE,
    DEFAULT_NAME,
    MEMBERS,
    PRECISIONS,
    PYTHON_MODELS,
    STREAM_NAME,
    VERSION_DIRECTORY,
    FileFacts,
    Manifest,
    check_name,
    ensemble_directory,
    load_manifest,
    manifest_path,
    member_name,
    sha256_of,
)
from chattts_triton.tensors import PREPROCESS
from chattts_triton.text.lexicon import LEXICON_FILE
from chattts_triton.vocoder import decoder
from chattts_triton.voices import book_file, sample_encoder
from chattts_triton.voices.book import VoiceBook
from chattts_triton.voices.speaker import STATISTICS_FILE, SpeakerStatistics

_OPTIONAL_FILES = (SPK_STAT, VOICES)  # of a checkpoint
_OURSELVES = "chattts-triton"
_SPECIAL_TOKENS = (
    *("[Stts]", "[Ptts]", "[Sbreak]", "[Pbreak]", "[Ebreak]", "[spk_emb]", "[empty_spk]"),
    *("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[laugh]", "[break_0]"),
    *(f"[speed_{speed}]" for speed in range(MIN_SPEED, MAX_SPEED + 1)),
)
_VERSIONED_PACKAGES = ("ChatTTS", "numpy", "onnx", "torch")


# What the operator changes while the models serve: put there once, and never written again.
OPERATORS_FILES = (book_file.FILE_NAME, LEXICON_FILE)

LOCK_FILE = ".export.lock"

Check = Callable[[Path, Path, Manifest], None]


def export(
    checkpoint_directory: Path,
    repository: Path,
    precision: str,
    check: Check | None = None,
    *,
    name: str = DEFAULT_NAME,
) -> Manifest:
    """Put the checkpoint into `repository` as a complete set of models, ready to be served.

    `check` is called with checkpoint, repository and manifest before the export goes live, and
    prevents that by raising.

    Until the very last step nothing that a running server uses is touched, and a failure or a
    killed process leaves the former export in force. Sets of another `name` are left alone. Then
    config.pbtxt and model.py of this set become those of this version, whatever they held.

    Raises:
        InvalidRequestError: `precision` is not one of PRECISIONS, or `name` is malformed or would
            take that of another model.
        ModelLoadError: The checkpoint is incomplete or damaged, the files cannot be written, or
            another export into `repository` is running.
    """
    if precision not in PRECISIONS:
        raise InvalidRequestError.of("precision", precision, " or ".join(PRECISIONS))
    check_name(name)
    checkpoint = Checkpoint.open(checkpoint_directory)
    export_id = f"{precision}-{uuid.uuid4().hex[:12]}"
    with _alone_in(repository):
        if name != DEFAULT_NAME:
            check_not_taken(repository, name)
        with _staged(repository, name, export_id) as directories:
            _write_all(checkpoint, precision, directories)
            manifest = _describe(checkpoint, precision, export_id, repository, directories, name)
            if check:
                check(checkpoint_directory, repository, manifest)
            _publish(repository, manifest)
        _remove_former_exports(repository, manifest)
    return manifest


def is_export_of(
    repository: Path, checkpoint_directory: Path, precision: str, *, name: str = DEFAULT_NAME
) -> bool:
    """Whether the live export is of these very files, in this precision, by this version of us."""
    try:
        manifest = load_manifest(repository, name)
    except ModelLoadError:
        return False
    return (
        manifest.precision == precision
        and manifest.versions.get(_OURSELVES) == __version__
        and all(
            _holds(path, content) for path, content in _template_files(repository, name).items()
        )
        and manifest.checkpoint == _hashes_of(checkpoint_directory)
    )


@contextmanager
def _alone_in(repository: Path) -> Iterator[None]:
    """The only export into this repository, whose failures to write are our error."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        # A file and not the directory, which NFS does not lock. It stays: were it removed, a
        # waiting process could lock the old one and the next process a new one.
        with (repository / LOCK_FILE).open("a") as file:
            _lock(file, repository)
            yield
    except OSError as error:
        raise ModelLoadError(f"{repository}: cannot be written: {error}") from error


def _lock(file: IO[str], repository: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, even a killed one
    except BlockingIOError:
        raise ModelLoadError(f"{repository}: another export into it is running") from None


@contextmanager
def _staged(repository: Path, name: str, export_id: str) -> Iterator[dict[str, Path]]:
    """Fresh directories for each member's files; what was made is removed if anything fails."""
    directories = {
        member: repository / member_name(name, member) / VERSION_DIRECTORY / export_id
        for member in MEMBERS
    }
    # The ensemble and the stream have no files but those that are renamed into place.
    without_files = [
        manifest_path(repository, name).parent,
        repository / member_name(name, STREAM_NAME) / VERSION_DIRECTORY,
    ]
    try:
        for directory in directories.values():
            directory.mkdir(parents=True)
        for directory in without_files:
            directory.mkdir(parents=True, exist_ok=True)
        yield directories
    except BaseException:
        for directory in directories.values():
            shutil.rmtree(directory, ignore_errors=True)
        for directory in (*without_files, *(path.parent for path in directories.values())):
            with suppress(OSError):
                os.removedirs(directory)  # as far as they are empty; the lock file ends it
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
            lambda: save(
                build_text_head_graph(checkpoint), directories["gpt"] / model_runner.TEXT_HEAD
            ),
        ),
        (
            "waveform",
            lambda: save(
                build_waveform_graph(checkpoint), directories["vocos_decoder"] / decoder.FILE_NAME
            ),
        ),
    ]
    if precision in CUDA_PRECISIONS:
        directory = directories["gpt"]
        steps.append(
            (
                "moves",
                lambda: save(build_kv_move_graph(checkpoint.dims), directory / kv_cache.MOVE_GRAPH),
            )
        )
    with tqdm(steps, desc="export", unit="part") as bar:
        for name, write in bar:
            bar.set_postfix_str(name)
            write()


def _write_preprocess(checkpoint: Checkpoint, directory: Path) -> None:
    shutil.copyfile(checkpoint.directory / TOKENIZER, directory / "tokenizer.json")
    np.save(directory / STATISTICS_FILE, speaker_statistics(checkpoint))
    _write_voices(checkpoint.directory / VOICES, directory)
    (directory / "homophones.json").write_text(
        json.dumps(homophones_map(), ensure_ascii=False), encoding="utf-8"
    )
    save(build_dvae_encoder_graph(checkpoint), directory / sample_encoder.FILE_NAME)


def _write_voices(voices: Path, directory: Path) -> None:
    """Put the checkpoint's own voices beside its statistics, if it brings any."""
    if not voices.exists():
        return
    # Read as the server will: what it could not load never goes live.
    VoiceBook(None, SpeakerStatistics(directory / STATISTICS_FILE), shipped=voices)
    shutil.copyfile(voices, directory / book_file.FILE_NAME)


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
    name: str,
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
        checkpoint=_hashes_of(checkpoint.directory),
        versions={
            _OURSELVES: __version__,
            **{package: metadata.version(package) for package in _VERSIONED_PACKAGES},
            "onnxruntime": ort.VERSION,
        },
        opset=OPSET,
        name=name,
    )


def _hashes_of(checkpoint_directory: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint that an export is made from, by its name."""
    present = [name for name in _OPTIONAL_FILES if (checkpoint_directory / name).exists()]
    return {name: sha256_of(checkpoint_directory / name) for name in (*FILES, *present)}


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
    """Rename everything into place, the manifest last; nothing is, where one cannot be written."""
    files = _template_files(repository, manifest.name)
    files |= _operators_files(repository, manifest.name)
    files[manifest_path(repository, manifest.name)] = manifest.to_json().encode()
    fresh = {path: _beside(path) for path, content in files.items() if _is_due(path, content)}
    try:
        for path, temporary in fresh.items():
            _write_durably(temporary, files[path])
        link = repository / DEFAULT_NAME
        if manifest.name == DEFAULT_NAME and not link.is_symlink():
            link.symlink_to(DEFAULT_ENSEMBLE)
        for path, temporary in fresh.items():
            temporary.replace(path)
    finally:
        for path in files:  # a killed export may have left one of a file that is not due now
            _beside(path).unlink(missing_ok=True)


def _is_due(path: Path, content: bytes) -> bool:
    return not (path.exists() if path.name in OPERATORS_FILES else _holds(path, content))


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove_former_exports(repository: Path, manifest: Manifest) -> None:
    for member in MEMBERS:
        live = manifest.member_directory(repository, member)
        for path in live.parent.iterdir():
            if path.is_dir() and path != live and path.name.startswith(PRECISIONS):
                shutil.rmtree(path)
    load_manifest(repository, manifest.name)


def template_directory() -> Path:
    """Where config.pbtxt and model.py of every model come from."""
    packaged = Path(__file__).parents[1] / "repository_template"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "model_repository"


def _operators_files(repository: Path, name: str) -> dict[Path, bytes]:
    template = template_directory() / PREPROCESS.name
    directory = repository / member_name(name, PREPROCESS.name)
    return {directory / file: (template / file).read_bytes() for file in OPERATORS_FILES}


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _template_files(repository: Path, name: str) -> dict[Path, bytes]:
    """Every config.pbtxt and model.py of a set of models, by the place where it belongs."""
    template = template_directory()
    places = {model: repository / member_name(name, model) for model in PYTHON_MODELS}
    files = {
        place / VERSION_DIRECTORY / "model.py": (
            template / model / VERSION_DIRECTORY / "model.py"
        ).read_bytes()
        for model, place in places.items()
    }
    places[DEFAULT_ENSEMBLE] = repository / ensemble_directory(name)
    for model, place in places.items():
        config = (template / model / CONFIG_FILE).read_text(encoding="utf-8")
        if name != DEFAULT_NAME:
            config = named_config(config, name)
        files[place / CONFIG_FILE] = config.encode()
    return files
