import io
import json
import sys
from pathlib import Path

import pytest

from chattts_triton.cli.main import main
from chattts_triton.constants import DEFAULT_SPEED
from chattts_triton.manifest import load_manifest
from chattts_triton.text.prompt import PromptEncoder


@pytest.fixture
def repository(tiny_repositories: dict[str, Path]) -> Path:
    return tiny_repositories["fp32"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["normalize", *arguments, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.count("\n") == 1
    result: dict[str, object] = json.loads(output.out)
    return result


def pretend_input(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def test_json_holds_the_keys_of_the_contract(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, "[LAUGH]雎有3个！", "--repository", str(repository))

    text_ids = result.pop("text_ids")
    assert result == {
        "normalized": "[laugh]居有三个。",
        "segments": ["[laugh]居有三个。"],
        "language": "zh",
        "tags": ["[laugh]"],
    }
    manifest = load_manifest(repository)
    directory = manifest.member_directory(repository, "preprocess")
    encoder = PromptEncoder(directory / "tokenizer.json", manifest.special_ids)
    assert text_ids == encoder.encode("[laugh]居有三个。", DEFAULT_SPEED)


def test_the_ids_are_those_of_all_segments(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "春天的花开在山坡上，" * 4 + "很美。"

    result = run_json(capsys, sentence * 2, "--repository", str(repository))

    start = load_manifest(repository).special_ids["[Stts]"]
    assert result["segments"] == [sentence, sentence]
    assert result["text_ids"].count(start) == 2  # type: ignore[attr-defined]


def test_homophones_and_language_can_be_chosen(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--repository", str(repository)]

    assert run_json(capsys, "雎", "--no-homophones", *where)["normalized"] == "雎"
    assert run_json(capsys, "9", "--lang", "en", *where)["normalized"] == "nine"
    assert run_json(capsys, "9", *where)["normalized"] == "九"


def test_the_lexicon_is_that_of_the_repository_or_the_one_given(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.tsv"
    mine.write_text("AI\tmine\n", encoding="utf-8")
    served = repository / "preprocess" / "lexicon.tsv"
    where = ["--repository", str(repository)]
    served.write_text("AI\tserved\n", encoding="utf-8")

    try:
        assert run_json(capsys, "AI", *where)["normalized"] == "served"
        assert run_json(capsys, "AI", "--lexicon", str(mine), *where)["normalized"] == "mine"
    finally:
        served.unlink()


def test_a_minus_reads_standard_input(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_input(monkeypatch, "第一行\n第2行\n".encode())

    result = run_json(capsys, "-", "--repository", str(repository))

    assert result["normalized"] == "第一行。第二行"


def test_without_json_every_stage_is_listed(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["normalize", "雎Ｃ有3个！", "--repository", str(repository)]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "received    雎Ｃ有3个！",
        "letters     雎C有3个！",
        "figures     雎C有三个！",
        "characters  雎C有三个。",
        "homophones  居C有三个。",
        "language    zh",
        "tags        none",
        "segment 1   居C有三个。",
    ]


def test_without_any_export_only_homophones_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["normalize", "[laugh]雎有3个！"]) == 0

    output = capsys.readouterr()
    assert "segment 1   [laugh]雎有三个。\n" in output.out
    assert "homophones" not in output.out
    assert output.err == "model_repository: no exported model, so no homophones\n"


@pytest.mark.parametrize("arguments", [["--json"], ["--repository", "."]])
def test_a_repository_that_is_needed_and_not_exported_is_an_error(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["normalize", "好", *arguments]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert "no exported model" in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"", "no speakable text"), (b"!!!", "no speakable text"), (b"\xff", "not UTF-8"),
     ("好".encode() * 5001, "got 5001 characters")],
)  # fmt: skip
def test_a_text_that_cannot_be_spoken_is_one_line_and_exits_with_1(
    raw: bytes,
    message: str,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_input(monkeypatch, raw)

    assert main(["normalize", "-", "--repository", str(repository), "--json"]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("chattts-triton normalize: TEXT: got ")
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_wrong_lexicon_is_one_line(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lexicon.tsv"
    path.write_text("AI\n", encoding="utf-8")

    code = main(["normalize", "AI", "--lexicon", str(path), "--repository", str(repository)])

    assert code == 1
    assert "line 1: " in capsys.readouterr().err
    path.unlink()
    assert main(["normalize", "AI", "--lexicon", str(path), "--repository", str(repository)]) == 1
    assert f"--lexicon {path}: missing" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["好", "--lang", "fr"]])
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["normalize", *arguments])

    assert caught.value.code == 2
