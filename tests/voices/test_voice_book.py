import json
import logging
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from voices_fixtures import HIDDEN_SIZE, SAMPLE_STRING, random_codes, write_book

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.book import VoiceBook
from chattts_triton.voices.book_file import write_entries
from chattts_triton.voices.entry import VoiceEntry
from chattts_triton.voices.prompt_codes import encode_prompt_codes
from chattts_triton.voices.speaker import SpeakerStatistics, encode_speaker, speaker_embedding


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path, statistics: SpeakerStatistics) -> Path:
    speaker = encode_speaker(statistics.draw(5))
    return write_book(
        tmp_path / "voices.json",
        {
            "anna": {"seed": 2222},
            "小红": {"speaker": speaker},
            "cloned": {"seed": 3, "prompt": SAMPLE_STRING, "text": "hello there"},
        },
    )


@pytest.fixture
def book(path: Path, statistics: SpeakerStatistics, clock: Clock) -> VoiceBook:
    return VoiceBook(path, statistics, clock=clock)


@pytest.mark.parametrize("seed", [0, 2222, 2**63 - 1])
def test_no_voice_is_drawn_from_the_seed(
    book: VoiceBook, statistics: SpeakerStatistics, seed: int
) -> None:
    wanted = speaker_embedding(statistics.draw(seed))

    for voice in (None, ""):
        got = book.resolve(voice, seed)
        assert np.array_equal(got.embedding, wanted)
        assert got.prompt_codes is None
        assert got.prompt_text == ""


def test_every_form_of_a_voice_gives_the_same_one(
    book: VoiceBook, statistics: SpeakerStatistics
) -> None:
    string = encode_speaker(statistics.draw(2222))

    embeddings = {
        book.resolve(voice, seed).embedding.tobytes()
        for voice, seed in (("anna", 1), ("seed:2222", 2), (string, 3), (None, 2222))
    }

    assert len(embeddings) == 1


def test_a_name_may_be_written_in_han(book: VoiceBook, statistics: SpeakerStatistics) -> None:
    got = book.resolve("小红", 1)

    assert np.array_equal(got.embedding, speaker_embedding(statistics.draw(5)))


def test_a_cloned_voice_brings_codes_and_transcript(book: VoiceBook) -> None:
    voice = book.resolve("cloned", 1)

    assert np.array_equal(voice.prompt_codes, random_codes(100))
    assert voice.prompt_codes.dtype == np.int32
    assert voice.prompt_text == "hello there"


@pytest.mark.parametrize("voice", ["anna", "cloned", "seed:5", None])
def test_no_caller_can_change_the_voice_of_another(book: VoiceBook, voice: str | None) -> None:
    got = book.resolve(voice, 1)

    for array in (got.embedding, got.prompt_codes):
        if array is not None:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_b_33_resolving_leaves_the_random_state_of_the_process_alone(book: VoiceBook) -> None:
    before = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())

    for voice in ("anna", "seed:7", None):
        book.resolve(voice, 7)

    after = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
    assert after == before


@pytest.mark.parametrize(
    "voice",
    [
        "seed:",
        "seed:x",
        "seed:-1",
        "seed:+1",
        "seed: 1",
        "seed:1.0",
        "seed:１",
        "seed:9223372036854775808",
        "seed:00000000000000000001",
        "seed:" + "9" * 5000,
    ],
)
def test_b_48_a_malformed_seed_is_called_one(book: VoiceBook, voice: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        book.resolve(voice, 1, "VOICE[3]")

    message = str(caught.value)
    assert message.startswith("VOICE[3]: got 'seed:")
    assert message.endswith("wanted seed:N with N from 0 to 9223372036854775807")


@pytest.mark.parametrize(
    "voice", ["nobody", "Anna", "anna ", "小红小红", "Seed:5", "abc", "你", " "]
)
def test_b_48_an_unknown_name_is_told_all_forms(book: VoiceBook, voice: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        book.resolve(voice, 1)

    assert str(caught.value) == (
        f"VOICE: got {voice!r}, wanted a name of voices.json, seed:N, or a ChatTTS speaker string; "
        "known names: anna, 小红, cloned"
    )


def test_b_48_a_damaged_speaker_string_is_called_one(
    book: VoiceBook, statistics: SpeakerStatistics
) -> None:
    string = encode_speaker(statistics.draw(5))

    for voice in (string[:-1], string + "一", string * 2, "x" * 41):
        with pytest.raises(InvalidRequestError) as caught:
            book.resolve(voice, 1)
        assert str(caught.value).endswith(
            f"wanted a ChatTTS speaker string of {HIDDEN_SIZE} values, in full"
        )


@pytest.mark.parametrize("num_codes", [1, 100])
def test_b_48_a_sample_string_is_called_one_however_short(book: VoiceBook, num_codes: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"^VOICE: .* the codes of an audio sample"):
        book.resolve(encode_prompt_codes(np.full((num_codes, 4), 7)), 1)


def test_many_known_names_are_cut_short(tmp_path: Path, statistics: SpeakerStatistics) -> None:
    names = [f"v{index}" for index in range(11)]
    book = VoiceBook(
        write_book(tmp_path / "voices.json", {name: {"seed": 1} for name in names}), statistics
    )

    with pytest.raises(InvalidRequestError, match=r"known names: v0, .*, v9, \.\.\.$"):
        book.resolve("nobody", 1)
    assert book.names == names


@pytest.mark.parametrize("missing", [True, False])
def test_without_a_file_there_are_no_names(
    tmp_path: Path, statistics: SpeakerStatistics, missing: bool
) -> None:
    book = VoiceBook(tmp_path / "voices.json" if missing else None, statistics)

    assert book.names == []
    with pytest.raises(InvalidRequestError, match=r"no names are known$"):
        book.resolve("anna", 1)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"seed": -1}, "seed: got -1, wanted "),
        ({"speaker": "abc"}, "speaker: got 'abc', wanted a ChatTTS speaker string of 48 values"),
        ({"speaker": SAMPLE_STRING}, "speaker: got "),
        ({"seed": 1, "prompt": "abc"}, "prompt: got 'abc', wanted a ChatTTS sample string"),
    ],
)
def test_a_damaged_entry_at_the_start_is_a_load_error(
    tmp_path: Path, statistics: SpeakerStatistics, entry: dict[str, object], message: str
) -> None:
    path = write_book(tmp_path / "voices.json", {"good": {"seed": 1}, "bad": entry})

    with pytest.raises(ModelLoadError) as caught:
        VoiceBook(path, statistics)

    assert str(caught.value).startswith(f"{path}: voice 'bad': {message}")


def test_a_speaker_string_of_another_checkpoint_is_a_load_error(
    tmp_path: Path, statistics: SpeakerStatistics, published_statistics: SpeakerStatistics
) -> None:
    speaker = encode_speaker(published_statistics.draw(1))
    path = write_book(tmp_path / "voices.json", {"wide": {"speaker": speaker}})

    with pytest.raises(ModelLoadError, match=r"voice 'wide': speaker: .* of 48 values"):
        VoiceBook(path, statistics)


def test_a_new_voice_is_known_a_second_later(book: VoiceBook, path: Path, clock: Clock) -> None:
    write_entries(path, {"new": VoiceEntry("new", seed=1)})

    clock.now_s += 0.9
    assert book.names == ["anna", "小红", "cloned"]
    clock.now_s += 0.2
    assert book.names == ["new"]


def test_a_change_in_place_of_equal_length_is_seen(
    tmp_path: Path, statistics: SpeakerStatistics, clock: Clock
) -> None:
    path = write_book(tmp_path / "voices.json", {"anna": {"seed": 1}})
    book = VoiceBook(path, statistics, clock=clock)
    facts = path.stat()
    write_book(path, {"anna": {"seed": 2}})
    # As an editor would a moment later; the two writes may fall into one tick of the file system.
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1_000_000))

    clock.now_s += 1

    wanted = speaker_embedding(statistics.draw(2))
    assert np.array_equal(book.resolve("anna", 9).embedding, wanted)


def test_a_file_that_appears_later_is_read(
    tmp_path: Path, statistics: SpeakerStatistics, clock: Clock
) -> None:
    book = VoiceBook(tmp_path / "voices.json", statistics, clock=clock)
    write_book(tmp_path / "voices.json", {"anna": {"seed": 1}})

    clock.now_s += 1

    assert book.names == ["anna"]


@pytest.fixture
def shipped(tmp_path: Path, statistics: SpeakerStatistics) -> Path:
    speaker = encode_speaker(statistics.draw(7))
    return write_book(tmp_path / "shipped.json", {"she": {"speaker": speaker}, "anna": {"seed": 9}})


def test_voices_of_the_checkpoint_are_known_beside_the_operators_whose_names_win(
    path: Path, shipped: Path, statistics: SpeakerStatistics
) -> None:
    book = VoiceBook(path, statistics, shipped=shipped)

    assert book.names == ["she", "anna", "小红", "cloned"]
    for name, seed in (("she", 7), ("anna", 2222)):
        wanted = speaker_embedding(statistics.draw(seed))
        assert np.array_equal(book.resolve(name, 1).embedding, wanted)


def test_voices_of_the_checkpoint_stay_when_the_operators_change(
    path: Path, shipped: Path, statistics: SpeakerStatistics, clock: Clock
) -> None:
    book = VoiceBook(path, statistics, shipped=shipped, clock=clock)
    write_book(path, {"new": {"seed": 1}})

    clock.now_s += 1

    assert book.names == ["she", "anna", "new"]
    wanted = speaker_embedding(statistics.draw(9))
    assert np.array_equal(book.resolve("anna", 1).embedding, wanted)


def test_a_damaged_book_of_the_checkpoint_is_a_load_error(
    path: Path, tmp_path: Path, statistics: SpeakerStatistics
) -> None:
    damaged = write_book(tmp_path / "shipped.json", {"she": {"speaker": "蘁淰"}})

    with pytest.raises(ModelLoadError, match=r"shipped\.json: voice 'she': speaker: got "):
        VoiceBook(path, statistics, shipped=damaged)


def test_a_damaged_file_keeps_the_former_book_and_is_logged_once(
    book: VoiceBook, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    before = book.resolve("anna", 1)
    write_book(path, {"anna": {"seed": -1}})

    with caplog.at_level(logging.ERROR, "chattts_triton.voices"):
        for _ in range(5):
            clock.now_s += 1
            assert book.resolve("anna", 1) is before

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "voice 'anna': seed: got -1" in caplog.messages[0]


def test_a_book_that_is_mended_is_read_again(book: VoiceBook, path: Path, clock: Clock) -> None:
    path.write_text("{", encoding="utf-8")
    clock.now_s += 1
    assert book.names == ["anna", "小红", "cloned"]

    write_book(path, {"mended": {"seed": 1}})
    clock.now_s += 1

    assert book.names == ["mended"]


def test_a_file_that_vanishes_keeps_the_former_book(
    book: VoiceBook, path: Path, clock: Clock
) -> None:
    path.unlink()
    clock.now_s += 1

    assert book.names == ["anna", "小红", "cloned"]


def test_threads_see_a_whole_book_while_it_changes(
    path: Path, statistics: SpeakerStatistics
) -> None:
    ticks = iter(range(10**9))
    book = VoiceBook(path, statistics, clock=lambda: float(next(ticks)))  # every call looks
    books = [{"anna": {"seed": seed}, "berta": {"seed": seed}} for seed in (1, 2)]
    wanted = {speaker_embedding(statistics.draw(seed)).tobytes() for seed in (1, 2)}
    write_entries(path, entries(books[0]))
    book.resolve("anna", 0)
    book.resolve("anna", 0)
    stop, failures, seen = threading.Event(), [], set()

    def ask() -> None:
        while not stop.is_set():
            for name in ("anna", "berta"):
                try:
                    seen.add(book.resolve(name, 0).embedding.tobytes())
                except InvalidRequestError as error:
                    failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for index in range(30):
        write_entries(path, entries(books[index % 2]))
    stop.set()
    for thread in threads:
        thread.join(timeout=30)

    assert failures == []
    assert seen <= wanted
    last = speaker_embedding(statistics.draw(2))
    assert np.array_equal(book.resolve("anna", 0).embedding, last)


def entries(content: dict[str, dict[str, int]]) -> dict[str, VoiceEntry]:
    return {name: VoiceEntry.from_json(name, entry) for name, entry in content.items()}


def test_the_book_holds_what_the_file_says(path: Path, book: VoiceBook) -> None:
    assert book.names == list(json.loads(path.read_text(encoding="utf-8"))["voices"])
