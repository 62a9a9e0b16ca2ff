"""Words outside a closed vocabulary: found, told by `preprocess`, listed by `normalize`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from text_fixtures import write_preprocess_files
from tokenizers import Tokenizer, models

from chattts_triton.cli.main import main
from chattts_triton.manifest import load_manifest
from chattts_triton.serving.edge import column
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.text.cleaner import clean
from chattts_triton.text.normalizer import TextNormalizer
from chattts_triton.text.prompt import load_tokenizer
from chattts_triton.text.vocabulary import ClosedVocabulary, closed_vocabulary


@pytest.fixture(scope="module")
def vocabulary(few_words: Path) -> ClosedVocabulary:
    closed = closed_vocabulary(load_tokenizer(few_words))
    assert closed is not None
    return closed


def test_words_and_characters_are_counted_and_control_tokens_are_none(
    vocabulary: ClosedVocabulary,
) -> None:
    assert vocabulary.num_words == 6
    assert vocabulary.num_characters == 2


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("hello, she.", []),
        ("Hello, SHE.", []),
        ("hello quetzal, she quetzal", ["quetzal"]),
        ("hellos", ["hellos"]),
        ("don't, she's", ["don't"]),
        ("b c, P M", []),
        ("你好世界，hello", ["世", "界"]),
        ("hello你she", []),
        ("[uv_break]hello[laugh]cats[speed_3]", ["cats"]),
        ("a" * 250, ["a" * 100, "a" * 50]),
    ],
)
def test_words_that_are_spelled_or_not_known_at_all_are_found(
    vocabulary: ClosedVocabulary, text: str, unknown: list[str]
) -> None:
    assert vocabulary.unknown_words(clean(text)) == unknown


def test_a_full_hour_is_read_in_known_words(vocabulary: ClosedVocabulary) -> None:
    text = TextNormalizer({}).normalize("hello, 9:00, she").text

    assert text == "hello, nine o'clock, she"
    assert vocabulary.unknown_words(text) == []


def test_a_tokenizer_in_the_published_form_reads_any_word(tiny_checkpoint: Path) -> None:
    path = tiny_checkpoint / "asset/tokenizer/tokenizer.json"

    assert closed_vocabulary(load_tokenizer(path)) is None


def test_a_tokenizer_of_another_kind_reads_any_word() -> None:
    tokenizer = Tokenizer(models.BPE())

    assert closed_vocabulary(tokenizer) is None


def ids_of(tokenizer: Path) -> dict[str, int]:
    file = load_tokenizer(tokenizer)
    tokens = ["[Stts]", "[Ptts]", "[spk_emb]", "[Sbreak]", "[Pbreak]", "[Ebreak]", "[break_0]"]
    return {token: file.token_to_id(token) for token in tokens}


def test_each_text_of_a_call_is_warned_about_by_itself(few_words: Path, tmp_path: Path) -> None:
    write_preprocess_files(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(few_words.read_bytes())
    preprocess = PreprocessModel(tmp_path, ids_of(few_words))
    texts = ["hello", "hello quetzal", "世界", "nine o'clock"]

    outputs = preprocess.run({"TEXT": column([text.encode() for text in texts], np.object_)}, {})

    warned, nothing = ["unknown_words"], list[str]()
    assert [json.loads(row[0]) for row in outputs["WARNINGS"]] == [nothing, warned, warned, nothing]


def test_a_text_of_many_segments_is_warned_about_once(few_words: Path, tmp_path: Path) -> None:
    write_preprocess_files(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(few_words.read_bytes())
    preprocess = PreprocessModel(tmp_path, ids_of(few_words))
    text = "hello she red car nine quetzal. " * 40

    outputs = preprocess.run({"TEXT": column([text.encode()], np.object_)}, {})

    assert outputs["NUM_TEXT_IDS"].shape[1] > 1
    assert outputs["WARNINGS"].tolist() == [[b'["unknown_words"]']]


def test_normalize_lists_the_words_where_the_vocabulary_is_closed(
    spelling_repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--repository", str(spelling_repository)]

    assert main(["normalize", "Hello quetzal 世", *where]) == 0
    listing = capsys.readouterr().out
    assert main(["normalize", "hello she", *where]) == 0
    known = capsys.readouterr().out
    assert main(["normalize", "Hello quetzal 世", *where, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)

    assert "\nunknown     quetzal 世\n" in listing
    assert "\nunknown     none\n" in known
    assert content.pop("unknown_words") == ["quetzal", "世"]
    assert list(content) == ["normalized", "segments", "language", "tags", "text_ids"]


def test_the_ids_of_few_words_are_those_of_the_manifest(
    spelling_repository: Path, few_words: Path
) -> None:
    assert ids_of(few_words).items() <= load_manifest(spelling_repository).special_ids.items()
