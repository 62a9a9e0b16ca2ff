"""The manifest is read strictly and holds the files to what it says."""

from __future__ import annotations

import json
import shutil

import pytest

from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import load_manifest, manifest_path


@pytest.fixture
def repository(tiny_repositories, tmp_path):
    copy = tmp_path / "repository"
    shutil.copytree(tiny_repositories["int8"], copy, symlinks=True)
    return copy


def test_a_repository_without_an_export_says_what_to_do(tmp_path):
    with pytest.raises(ModelLoadError, match="run `chattts-triton export` first"):
        load_manifest(tmp_path)


def test_a_file_cut_short_is_found_at_load(repository):
    name, facts = next(iter(load_manifest(repository).files.items()))
    (repository / name).write_bytes(b"x")

    with pytest.raises(ModelLoadError, match=f"{name}: 1 bytes, manifest says {facts.size_bytes}"):
        load_manifest(repository)


def test_a_missing_file_is_found_at_load(repository):
    name = next(iter(load_manifest(repository).files))
    (repository / name).unlink()

    with pytest.raises(ModelLoadError, match=f"{name}: missing"):
        load_manifest(repository)


def test_a_changed_file_is_found_when_hashes_are_asked_for(repository):
    manifest = load_manifest(repository)
    name = next(name for name in manifest.files if name.endswith("tokenizer.json"))
    content = bytearray((repository / name).read_bytes())
    content[100] ^= 1
    (repository / name).write_bytes(content)

    load_manifest(repository).verify(repository)
    with pytest.raises(ModelLoadError, match=f"{name}: SHA-256"):
        manifest.verify(repository, hashes=True)


def test_reading_gives_back_what_was_written(repository):
    manifest = load_manifest(repository)

    assert manifest_path(repository).read_text(encoding="utf-8") == manifest.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("dims"), "wanted the keys"),
        (lambda content: content.update(extra=1), "wanted the keys"),
        (lambda content: content["dims"].pop("hidden_size"), "of another version"),
        (lambda content: content.update(files=[]), "of another version"),
    ],
)
def test_a_manifest_of_another_version_asks_for_a_new_export(repository, change, message):
    path = manifest_path(repository)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(ModelLoadError, match=message):
        load_manifest(repository)


def test_a_manifest_that_is_no_json_is_named(repository):
    manifest_path(repository).write_bytes(b"\xff{")

    with pytest.raises(ModelLoadError, match=r"manifest\.json: cannot be read"):
        load_manifest(repository)
