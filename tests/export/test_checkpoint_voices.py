"""Files that only a checkpoint of ours brings: named voices, speaker statistics of its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pybase16384
import pytest

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.repository import (
    LOCK_FILE,
    export,
    is_export_of,
    template_directory,
)
from chattts_triton.manifest import load_manifest, sha256_of
from chattts_triton.voices.speaker import encode_speaker

VOICES = "asset/voices.json"
STATISTICS = "asset/spk_stat.txt"


@pytest.fixture
def checkpoint(spelling_checkpoint: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "checkpoint"
    shutil.copytree(spelling_checkpoint, copy, copy_function=os.link)
    return copy


def write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # it may be a link to a file that others use
    path.write_text(text, encoding="utf-8")


def test_voices_of_a_checkpoint_become_part_of_its_export(
    spelling_checkpoint: Path, spelling_repository: Path
) -> None:
    manifest = load_manifest(spelling_repository)

    directory = manifest.member_directory(spelling_repository, "preprocess")
    exported = directory / "voices.json"
    assert exported.read_bytes() == (spelling_checkpoint / VOICES).read_bytes()
    assert str(exported.relative_to(spelling_repository)) in manifest.files
    assert manifest.checkpoint[VOICES] == sha256_of(spelling_checkpoint / VOICES)


def test_the_book_of_the_operator_stays_whatever_a_checkpoint_brings(
    spelling_repository: Path,
) -> None:
    operators = spelling_repository / "preprocess" / "voices.json"

    assert operators.read_bytes() == (template_directory() / "preprocess/voices.json").read_bytes()


def test_the_voices_of_a_former_checkpoint_go_with_it(
    checkpoint: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    export(checkpoint, repository, "int8")

    manifest = export(tiny_checkpoint, repository, "int8")

    assert [path.parent for path in repository.rglob("voices.json")] == [repository / "preprocess"]
    assert VOICES not in manifest.checkpoint


def test_an_export_is_of_the_very_voices_that_the_checkpoint_has(
    checkpoint: Path, spelling_repository: Path
) -> None:
    content = (checkpoint / VOICES).read_text(encoding="utf-8")
    assert is_export_of(spelling_repository, checkpoint, "int8")

    write(checkpoint / VOICES, content.replace("Of a test.", "Of another."))
    assert not is_export_of(spelling_repository, checkpoint, "int8")
    (checkpoint / VOICES).unlink()
    assert not is_export_of(spelling_repository, checkpoint, "int8")
    write(checkpoint / VOICES, content)
    assert is_export_of(spelling_repository, checkpoint, "int8")


def test_an_export_is_of_the_very_statistics_that_the_checkpoint_has(
    checkpoint: Path, spelling_repository: Path
) -> None:
    ones = pybase16384.encode_to_string(np.ones(2 * 768, dtype=np.float16).tobytes())

    write(checkpoint / STATISTICS, ones)

    assert not is_export_of(spelling_repository, checkpoint, "int8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"asset/voices\.json: cannot be read"),
        ("[]", r"asset/voices\.json: wanted \{"),
        ('{"voices": {"up": {"seed": 1, "pitch": 2}}}', "voice 'up': 'pitch': unknown, known are"),
        ('{"voices": {"up": {"speaker": "蘁淰"}}}', "voice 'up': speaker: got '蘁淰', wanted"),
    ],
)
def test_damaged_voices_are_named_and_the_former_export_stays(
    checkpoint: Path, tmp_path: Path, content: str, message: str
) -> None:
    repository = tmp_path / "repository"
    former = export(checkpoint, repository, "int8")
    write(checkpoint / VOICES, content)

    with pytest.raises(ModelLoadError, match=message):
        export(checkpoint, repository, "int8")

    assert load_manifest(repository) == former
    assert len(list(repository.glob("preprocess/1/*/"))) == 1


def test_voices_of_another_width_leave_an_empty_repository_empty(
    checkpoint: Path, tmp_path: Path
) -> None:
    book = {"voices": {"narrow": {"speaker": encode_speaker(np.ones(256, np.float16))}}}
    write(checkpoint / VOICES, json.dumps(book))

    with pytest.raises(ModelLoadError, match=r"voice 'narrow': speaker: got .* of 768 values"):
        export(checkpoint, tmp_path / "repository", "int8")

    assert [path.name for path in (tmp_path / "repository").iterdir()] == [LOCK_FILE]
