from pathlib import Path

import pytest
import soundfile as sf

from training.domain import WORDS
from training.recognizer import ErrorRate, Recognizer, said_words, word_errors

TEACHER = Path(__file__).parents[1] / "data" / "teacher"
SLT = ("slt_sister", "every sister costs six euros.")
RMS = ("rms_months", "some houses started in february.")


def audio_of(name):
    return sf.read(TEACHER / f"{name}.ogg", dtype="float32")


@pytest.fixture(scope="module")
def rms_recognizer():
    return Recognizer(WORDS, voice="rms")


@pytest.mark.parametrize(("name", "text"), [SLT, RMS])
def test_the_words_of_a_teacher_are_heard(name, text):
    recognizer = Recognizer(WORDS, voice=name[:3])

    heard = recognizer.words(*audio_of(name))

    assert heard == said_words(text)


def test_a_spelled_word_is_heard_as_its_letters(rms_recognizer):
    heard = rms_recognizer.words(*audio_of("rms_spelled"))

    assert word_errors(["the", "word", "is", "k", "b", "x"], heard) == 0


def test_without_letters_no_letter_is_heard():
    recognizer = Recognizer(WORDS, letters=False, voice="rms")

    heard = recognizer.words(*audio_of("rms_spelled"))

    assert set(heard) <= set(WORDS)


@pytest.mark.parametrize("before", ["rms_months", "slt_sister"])
def test_what_was_heard_before_changes_nothing(before):
    alone = Recognizer(WORDS, voice="slt").words(*audio_of("rms_spelled"))
    recognizer = Recognizer(WORDS, voice="slt")
    recognizer.words(*audio_of(before))

    assert recognizer.words(*audio_of("rms_spelled")) == alone


def test_another_sample_rate_is_heard_alike(rms_recognizer):
    audio, rate_hz = audio_of("rms_months")
    twice_as_dense = audio.repeat(2)

    assert rms_recognizer.words(twice_as_dense, 2 * rate_hz) == said_words(RMS[1])


def test_a_word_outside_the_dictionary_is_refused_by_name():
    with pytest.raises(ValueError, match="qwertz"):
        Recognizer(["house", "qwertz"])


def test_an_unknown_voice_is_refused_by_name():
    with pytest.raises(ValueError, match="kal"):
        Recognizer(["house"], voice="kal")


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("the red house", "the red house", 0),
        ("the red house", "the house", 1),
        ("the red house", "the red red house", 1),
        ("the red house", "a red book", 2),
        ("", "the house", 2),
        ("the house", "", 2),
        ("to wait for you", "two wait four u", 0),
    ],
)
def test_errors_are_counted_by_word_and_homophones_are_one(said, heard, errors):
    assert word_errors(said.split(), heard.split()) == errors


def test_the_rate_is_over_all_words_said():
    rate = ErrorRate()
    assert rate.rate == 0.0

    rate.add(["the", "house"], ["the", "book"])
    rate.add(["red", "green"], ["red", "green"])

    assert (rate.errors, rate.words, rate.rate) == (1, 4, 0.25)


def test_a_text_is_said_without_marks_and_with_unknown_words_spelled():
    said = said_words("hello, the word [uv_break] is zinc. [lbreak] at nine p m.")

    assert said == [*["hello", "the", "word", "is", "z", "i", "n", "c", "at", "nine", "p", "m"]]
