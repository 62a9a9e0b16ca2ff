import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from voices_fixtures import FULL_SIZE, RATE_HZ, SAMPLE_STRING, speech_like, write_book

from chattts_triton.cli.main import main
from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.manifest import DEFAULT_NAME, Manifest, manifest_path
from chattts_triton.voices.book import VoiceBook
from chattts_triton.voices.book_file import book_path, read_entries
from chattts_triton.voices.prompt_codes import decode_prompt_codes
from chattts_triton.voices.sample_audio import read_sample
from chattts_triton.voices.sample_encoder import SampleEncoder
from chattts_triton.voices.speaker import SpeakerStatistics, decode_speaker, encode_speaker

TRANSCRIPT = "一二三 four five"


def write_repository(
    directory: Path,
    checkpoint: Path,
    encoder: Path,
    values: npt.NDArray[np.float16],
    name: str = DEFAULT_NAME,
) -> Path:
    """As much of an export as the command reads."""
    manifest = Manifest(
        export_id="fp32-0123456789ab",
        precision="fp32",
        dims=Checkpoint.open(checkpoint).dims,
        special_ids={},
        files={},
        checkpoint={},
        versions={},
        opset=20,
        name=name,
    )
    preprocess = manifest.member_directory(directory, "preprocess")
    preprocess.mkdir(parents=True)
    np.save(preprocess / "speaker_statistics.npy", values)
    for path in encoder.iterdir():
        (preprocess / path.name).symlink_to(path)
    manifest_path(directory, name).parent.mkdir(parents=True)
    manifest_path(directory, name).write_text(manifest.to_json(), encoding="utf-8")
    return directory


@pytest.fixture
def values() -> npt.NDArray[np.float16]:
    random = np.random.default_rng(3)
    return random.uniform(0.5, 2, (2, FULL_SIZE)).astype(np.float16)


@pytest.fixture
def repository(
    tmp_path: Path,
    tiny_checkpoint: Path,
    encoder_directory: Path,
    values: npt.NDArray[np.float16],
) -> Path:
    return write_repository(tmp_path / "repository", tiny_checkpoint, encoder_directory, values)


@pytest.fixture
def speakers(tmp_path: Path, values: npt.NDArray[np.float16]) -> SpeakerStatistics:
    np.save(tmp_path / "values.npy", values)
    return SpeakerStatistics(tmp_path / "values.npy")


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "reference.wav"
    soundfile.write(path, speech_like(2.0, 44_100), 44_100)
    return path


class Command:
    """`chattts-triton voices ...` on one repository."""

    def __init__(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.repository = repository
        self._capsys = capsys

    def __call__(self, action: str, *arguments: str) -> str:
        """What it writes to standard output; it must succeed."""
        code, out, err = self.outcome(action, *arguments)
        assert (code, err) == (0, "")
        return out

    def fails(self, action: str, *arguments: str) -> str:
        """The one line that it writes to standard error; it must fail, and write nothing else."""
        code, out, err = self.outcome(action, *arguments)
        assert (code, out) == (1, "")
        assert err.startswith("chattts-triton voices: ")
        assert err.count("\n") == 1
        return err

    def outcome(self, action: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["voices", action, f"--repository={self.repository}", *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def entries(self) -> dict[str, Any]:
        return read_entries(book_path(self.repository))


@pytest.fixture
def voices(repository: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(repository, capsys)


def test_list_is_a_table_of_even_columns(voices: Command) -> None:
    voices("add", "小红", "--seed=2222", "--description=A voice.", "--language=zh")
    voices("add", "b", "--seed=1", "--description=Another.")

    lines = voices("list").splitlines()

    assert lines == [
        "name  speaker    language  prompt  description",
        "小红  seed:2222  zh                A voice.",
        "b     seed:1     any               Another.",
    ]


def test_list_as_json_tells_the_facts_without_the_strings(voices: Command) -> None:
    write_book(
        book_path(voices.repository),
        {"a": {"seed": 5, "prompt": SAMPLE_STRING, "text": "hello", "tags": ["warm"]}},
    )

    assert json.loads(voices("list", "--json")) == [
        {
            "name": "a",
            "description": "",
            "language": "any",
            "tags": ["warm"],
            "seed": 5,
            "has_prompt": True,
            "text": "hello",
        }
    ]


def test_draw_prints_a_seed_and_the_string_of_that_seed(
    voices: Command, speakers: SpeakerStatistics
) -> None:
    seed, string = voices("draw").splitlines()

    assert string == encode_speaker(speakers.draw(int(seed.removeprefix("seed:"))))
    assert not book_path(voices.repository).exists()


def test_two_draws_are_two_voices(voices: Command) -> None:
    assert voices("draw") != voices("draw")


def test_a_drawn_voice_is_kept_under_its_name(voices: Command) -> None:
    drawn = json.loads(voices("draw", "--name=lucky", "--json"))

    entry = voices.entries()["lucky"]
    assert (drawn["name"], drawn["seed"]) == ("lucky", entry.seed)
    assert voices("export", "lucky") == drawn["speaker"] + "\n"


def test_add_keeps_a_seed_with_all_that_is_said_of_it(voices: Command) -> None:
    out = voices(
        "add",
        "anna",
        "--seed=2222",
        "--description=Calm.",
        "--language=en",
        "--tag=calm",
        "--tag=low",
    )

    assert out == "anna: seed:2222\n"
    assert json.loads(book_path(voices.repository).read_text(encoding="utf-8")) == {
        "voices": {
            "anna": {
                "seed": 2222,
                "description": "Calm.",
                "language": "en",
                "tags": ["calm", "low"],
            }
        }
    }


def test_a_speaker_string_that_is_added_is_exported_unchanged(
    voices: Command, speakers: SpeakerStatistics, tmp_path: Path
) -> None:
    string = encode_speaker(speakers.draw(9))
    voices("add", "bob", f"--speaker={string}")

    out = voices("export", "bob", f"--out={tmp_path / 'bob.txt'}")

    assert out == ""
    assert (tmp_path / "bob.txt").read_text(encoding="utf-8") == f"{string}\n"
    assert voices("export", "bob") == f"{string}\n"
    assert np.array_equal(decode_speaker(string, FULL_SIZE), speakers.draw(9))


def test_a_sample_is_encoded_and_comes_out_of_the_book(
    voices: Command, speakers: SpeakerStatistics, wav: Path, encoder: SampleEncoder
) -> None:
    out = voices("add", "carl", "--seed=4", f"--from-wav={wav}", f"--text={TRANSCRIPT}")

    voice = VoiceBook(book_path(voices.repository), speakers).resolve("carl", 1)
    assert out == "carl: seed:4, prompt from a sample\n"
    assert voice.prompt_text == TRANSCRIPT
    assert np.array_equal(voice.prompt_codes, encoder.encode(read_sample(wav)))


def test_the_prompt_of_a_sample_at_our_rate_is_upstreams(
    voices: Command, upstream_chat: Any, tmp_path: Path
) -> None:
    path, audio = tmp_path / "a.wav", speech_like(1.7)
    soundfile.write(path, audio, RATE_HZ, subtype="FLOAT")

    voices("add", "dora", f"--from-wav={path}", "--text=hello")

    assert voices.entries()["dora"].prompt == upstream_chat.sample_audio_speaker(audio)


def test_a_sample_without_a_speaker_gets_one_that_stays(voices: Command, wav: Path) -> None:
    voices("add", "emma", f"--from-wav={wav}", "--text=hello")

    assert voices.entries()["emma"].seed is not None
    assert voices("export", "emma") == voices("export", "emma")


def test_show_tells_what_is_known_and_the_string(
    voices: Command, speakers: SpeakerStatistics
) -> None:
    voices("add", "anna", "--seed=0", "--tag=a", "--tag=b")

    assert voices("show", "anna").splitlines() == [
        "name: anna",
        "language: any",
        "tags: a, b",
        "seed: 0",
        "has_prompt: False",
        f"speaker: {encode_speaker(speakers.draw(0))}",
    ]


def test_show_as_json_holds_both_strings(voices: Command, wav: Path) -> None:
    voices("add", "carl", "--seed=4", f"--from-wav={wav}", "--text=hello")

    shown = json.loads(voices("show", "carl", "--json"))

    assert decode_prompt_codes(shown["prompt"]).shape == (94, 4)
    assert shown["speaker"] + "\n" == voices("export", "carl")


def test_a_name_is_taken_once_unless_it_is_replaced(voices: Command) -> None:
    voices("add", "anna", "--seed=1")

    for arguments in (("add", "anna", "--seed=2"), ("draw", "--name=anna")):
        assert "anna: is there already; --replace takes its place" in voices.fails(*arguments)

    voices("add", "anna", "--seed=3", "--replace")
    assert voices.entries()["anna"].seed == 3


def test_other_sets_of_models_have_books_of_their_own(
    voices: Command,
    tiny_checkpoint: Path,
    encoder_directory: Path,
    values: npt.NDArray[np.float16],
) -> None:
    write_repository(voices.repository, tiny_checkpoint, encoder_directory, values, "second")

    voices("add", "anna", "--seed=1", "--model=second")

    assert voices("list", "--model=second").count("\n") == 2
    assert not book_path(voices.repository).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a b", "--seed=1"), "name: got 'a b', wanted 1 to 40 letters"),
        (("add", "a", "--seed=-1"), "seed: got -1, wanted 0 to"),
        (("add", "a", "--speaker=abc"), "speaker: got 'abc', wanted a ChatTTS speaker string"),
        (("add", "a", f"--speaker={SAMPLE_STRING}"), "the codes of an audio sample"),
        (("add", "a", "--seed=1", "--tag=x y"), "tags: got 'x y', wanted"),
        (("add", "a", "--from-wav=/nothing.wav", "--text=x"), "--from-wav: /nothing.wav cannot be"),
        (("draw", "--name=a:b"), "name: got 'a:b', wanted"),
        (("show", "nobody"), "NAME: got 'nobody', wanted one of: anna"),
        (("export", "nobody"), "NAME: got 'nobody', wanted one of: anna"),
        (("export", "anna", "--out=/nothing/x"), "cannot write /nothing/x: No such file"),
        (("list", "--model=second"), "second_preprocess/voices.json: cannot be read"),
    ],
)
def test_a_failure_is_one_line_and_changes_nothing(
    voices: Command, arguments: tuple[str, ...], message: str
) -> None:
    voices("add", "anna", "--seed=1")
    before = book_path(voices.repository).read_bytes()

    assert message in voices.fails(*arguments)

    assert book_path(voices.repository).read_bytes() == before


def test_a_sample_too_short_is_refused(voices: Command, tmp_path: Path) -> None:
    path = tmp_path / "short.wav"
    soundfile.write(path, speech_like(0.5), RATE_HZ)

    assert "has 0.50 s" in voices.fails("add", "a", f"--from-wav={path}", "--text=x")


def test_a_transcript_is_one_line(voices: Command, wav: Path) -> None:
    message = voices.fails("add", "a", f"--from-wav={wav}", "--text=a\nb")

    assert "text: got 'a\\nb', wanted one line" in message


def test_an_export_without_encoder_is_an_error_and_not_for_seeds(
    voices: Command, wav: Path
) -> None:
    for path in (voices.repository / "preprocess").rglob("dvae_encoder.onnx*"):
        path.unlink()

    assert "dvae_encoder.onnx: cannot be loaded" in voices.fails(
        "add", "a", f"--from-wav={wav}", "--text=x"
    )
    voices("add", "a", "--seed=1")


def test_nothing_is_drawn_where_nothing_was_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no exported model" in Command(tmp_path, capsys).fails("draw")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["add"],
        ["add", "a"],
        ["add", "a", "--seed=x"],
        ["add", "a", "--seed=1", "--speaker=x"],
        ["add", "a", "--seed=1", "--text=x"],
        ["add", "a", "--from-wav=x.wav"],
        ["add", "a", "--seed=1", "--language=fr"],
        ["show"],
        ["export"],
    ],
)
def test_wrong_use_of_voices_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["voices", *arguments])

    assert caught.value.code == 2
    assert "usage: chattts-triton voices" in capsys.readouterr().err


@pytest.fixture
def shipped(repository: Path) -> Path:
    """The book that the checkpoint brought."""
    export = repository / "preprocess" / "1" / "fp32-0123456789ab"
    return write_book(export / "voices.json", {"she": {"seed": 5, "description": "Hers."}})


@pytest.mark.usefixtures("shipped")
def test_voices_of_the_checkpoint_are_listed_and_shown_like_any(
    voices: Command, speakers: SpeakerStatistics
) -> None:
    voices("add", "mine", "--seed=1")

    assert [line.split()[:2] for line in voices("list").splitlines()[1:]] == [
        ["she", "seed:5"],
        ["mine", "seed:1"],
    ]
    assert "description: Hers.\n" in voices("show", "she")
    assert voices("export", "she") == encode_speaker(speakers.draw(5)) + "\n"
    assert "one of: she, mine" in voices.fails("show", "nobody")


def test_a_name_of_the_checkpoint_is_taken_and_is_replaced_in_the_operators_book_only(
    voices: Command, shipped: Path
) -> None:
    before = shipped.read_bytes()

    assert "she: is there already" in voices.fails("add", "she", "--seed=1")
    voices("add", "she", "--seed=1", "--replace")

    assert shipped.read_bytes() == before
    assert voices.entries()["she"].seed == 1
    assert voices("show", "she").splitlines()[0] == "name: she"
    assert "seed: 1\n" in voices("show", "she")


def test_a_damaged_book_of_the_checkpoint_is_one_line(voices: Command, shipped: Path) -> None:
    voices("add", "mine", "--seed=1")
    shipped.write_text("{", encoding="utf-8")

    assert f"{shipped}: cannot be read" in voices.fails("list")
