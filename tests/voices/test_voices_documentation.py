"""The default book, and docs/voices.md against the code."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chattts_triton.config import MAX_PROMPT_CODES
from chattts_triton.export.upstream import load_spk_stat
from chattts_triton.voices.book import VoiceBook
from chattts_triton.voices.book_file import book_path, read_entries
from chattts_triton.voices.entry import LANGUAGES, MAX_NAME_CHARACTERS, VoiceEntry
from chattts_triton.voices.prompt_codes import MAX_SAMPLE_S, MIN_SAMPLE_S
from chattts_triton.voices.speaker import SpeakerStatistics, encode_speaker

ROOT = Path(__file__).parents[2]
DEFAULT_BOOK = book_path(ROOT / "model_repository")
PAGE = (ROOT / "docs" / "voices.md").read_text(encoding="utf-8")


def test_b_32_the_published_hash_is_that_of_seed_2222(
    published_statistics: SpeakerStatistics,
) -> None:
    vector = published_statistics.draw(2222)

    sha256 = hashlib.sha256(vector.astype("<f2").tobytes()).hexdigest()

    assert re.findall(r"\b[0-9a-f]{64}\b", PAGE) == [sha256]


@pytest.mark.parametrize("seed", [2222, 1, 2**32 + 5])
def test_b_32_a_numbered_voice_is_upstreams_on_the_published_statistics(
    published_statistics: SpeakerStatistics, upstream_speaker_class: Any, seed: int
) -> None:
    speaker = upstream_speaker_class(768, load_spk_stat())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        text = speaker.sample_random()

    assert encode_speaker(published_statistics.draw(seed)) == text
    book = VoiceBook(None, published_statistics)
    named, given = book.resolve(f"seed:{seed}", 0), book.resolve(text, 0)
    assert np.array_equal(named.embedding, given.embedding)


def test_the_default_book_holds_a_handful_of_different_voices(
    published_statistics: SpeakerStatistics,
) -> None:
    book = VoiceBook(DEFAULT_BOOK, published_statistics)

    assert 5 <= len(book.names) <= 9
    assert len({book.resolve(name, 0).embedding.tobytes() for name in book.names}) == len(
        book.names
    )


def test_every_default_voice_is_described() -> None:
    for entry in read_entries(DEFAULT_BOOK).values():
        assert entry.seed is not None
        assert entry.description.strip()
        assert entry.tags


def test_the_default_voices_are_documented() -> None:
    entries = read_entries(DEFAULT_BOOK).values()

    assert [f"| `{entry.name}` | `{entry.source}` |" in PAGE for entry in entries] == [True] * len(
        entries
    )


def test_the_keys_of_an_entry_are_documented() -> None:
    section = PAGE.split("\n## voices.json\n")[1].split("\n## ")[0]

    keys = re.findall(r"(?m)^\| `(\w+)` \|", section)

    assert keys == [name for name in VoiceEntry.__dataclass_fields__ if name != "name"]
    assert ", ".join(f"`{language}`" for language in LANGUAGES) in section
    assert f"1 to {MAX_NAME_CHARACTERS} letters" in section


def test_the_limits_of_a_sample_are_documented() -> None:
    assert f"{MIN_SAMPLE_S:.0f} to {MAX_SAMPLE_S:.1f} s" in PAGE
    assert f"at most {MAX_PROMPT_CODES:,} steps" in PAGE
