"""Checkpoints and exports that many tests share: each is made once a run."""

from __future__ import annotations

import os
import shutil
import string
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from chattts_triton.constants import NUM_VQ
from chattts_triton.export.checkpoint import EMBED
from chattts_triton.export.repository import export
from chattts_triton.export.standin import write_standin
from chattts_triton.export.tokenizer_standin import Vocabulary, tokenizer_files
from chattts_triton.manifest import PRECISIONS
from chattts_triton.voices.book_file import write_entries
from chattts_triton.voices.entry import VoiceEntry
from chattts_triton.voices.speaker import encode_speaker

FEW_WORDS = Vocabulary(
    pieces=(
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *"，。、你好"),
        *string.ascii_lowercase,
        *(f"##{letter}" for letter in string.ascii_lowercase),
    ),
    words=("hello", "nine", "clock", "she", "red", "car"),
)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "tiny"
    write_standin("tiny", directory)
    return directory


@pytest.fixture(scope="session")
def tiny_repositories(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    repositories = {}
    for precision in PRECISIONS:
        repositories[precision] = tmp_path_factory.mktemp(precision) / "model_repository"
        export(tiny_checkpoint, repositories[precision], precision)
    return repositories


@pytest.fixture(scope="session")
def endless_repository(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never says that it is done: what is drawn near the likeliest runs to its limit."""
    directory = tmp_path_factory.mktemp("checkpoint") / "endless"
    shutil.copytree(tiny_checkpoint, directory)
    tensors = load_file(directory / EMBED)
    for i in range(NUM_VQ):
        # The logit of the end code is then 0, and the highest of the others far above it.
        tensors[f"head_code.{i}.parametrizations.weight.original0"][-1] = 0.0
    save_file(tensors, directory / EMBED)
    repository = tmp_path_factory.mktemp("endless") / "model_repository"
    export(directory, repository, "fp32")
    return repository


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    """The demonstration voice that is shipped."""
    return Path(__file__).parents[1] / "assets" / "demo_voice"


@pytest.fixture(scope="session")
def few_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of six words, 你, 好 and the letters."""
    directory = tmp_path_factory.mktemp("few-words")
    for name, content in tokenizer_files(FEW_WORDS).items():
        (directory / name).write_text(content, encoding="utf-8")
    return directory / "tokenizer.json"


@pytest.fixture(scope="session")
def spelling_checkpoint(
    tiny_checkpoint: Path, few_words: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Knows few words and spells the others, and brings two voices of its own."""
    directory = tmp_path_factory.mktemp("checkpoint") / "spelling"
    shutil.copytree(tiny_checkpoint, directory, copy_function=os.link)
    shutil.rmtree(directory / "asset" / "tokenizer")
    shutil.copytree(few_words.parent, directory / "asset" / "tokenizer")
    ramp = np.arange(1, 769, dtype=np.float16)
    entries = {
        name: VoiceEntry(name, speaker=encode_speaker(vector), description="Of a test.")
        for name, vector in {"up": ramp, "down": -ramp}.items()
    }
    write_entries(directory / "asset" / "voices.json", entries)
    return directory


@pytest.fixture(scope="session")
def spelling_repository(
    spelling_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    repository = tmp_path_factory.mktemp("spelling") / "model_repository"
    export(spelling_checkpoint, repository, "int8")
    return repository


@pytest.fixture(scope="session")
def full_checkpoint() -> Path:
    """The stand-in in the published dims, kept for the next run; benchmarks take the same one."""
    directory = Path(__file__).parents[1] / "checkpoints" / "standin-full"
    if not directory.is_dir():
        write_standin("full", directory)
    return directory
