import numpy as np
import pytest

from training.teacher import (
    NOISE_SIGMA,
    UNKNOWN_UNIT,
    FliteError,
    TeacherError,
    read_phrases,
    speak,
)
from training.tokens import Tokens


def silences_s(speech):
    starts = [0.0, *(end for _, end in speech.phones)]
    return [
        end - start
        for start, (phone, end) in zip(starts, speech.phones, strict=False)
        if phone == "pau"
    ]


def as_flite_sees(phrases):
    return [" ".join(word for word, _ in phrase) for phrase in phrases.phrases]


def test_pauses_are_as_long_as_the_marks_say(flite_calls):
    speech = speak("hello, my friend [uv_break] good [lbreak] bye.", "slt", 5, 1)

    assert silences_s(speech)[:-1] == pytest.approx([0.06, 0.14, 0.25, 0.55], abs=1e-3)
    assert 0.10 <= silences_s(speech)[-1] < 0.10 + 512 / 24000 + 1e-3


def test_phones_cover_the_audio_in_whole_codes(flite_calls):
    speech = speak("hello, my friend.", "rms", 5, 1)

    assert [phone for phone, _ in speech.phones] == ["pau", "hello", "pau", "my", "friend", "pau"]
    assert len(speech.audio) % 512 == 0
    assert speech.audio.dtype == np.float32
    assert speech.phones[-1][1] == pytest.approx(len(speech.audio) / 24000)


def test_every_phone_belongs_to_a_word_a_letter_or_a_mark(flite_calls):
    text = "hello, my xy [uv_break] friend."

    units = speak(text, "slt", 5, 1).units

    # To this flite every name of a letter is one phone. The last silence is behind all units.
    assert units == [0, 0, 1, 2, 3, 4, 5, 6, 8]
    assert units[-1] == len(Tokens().ids(text))


def test_a_phrase_that_sounds_unlike_its_words_has_no_units(flite_calls):
    # By itself "and" has two phones, among others one.
    speech = speak("hello, black and white", "slt", 5, 1)

    assert speech.units == [0, 0, 1, *[UNKNOWN_UNIT] * 3, 5]


def test_silences_hold_the_noise_floor_only(flite_calls):
    speech = speak("hello [lbreak] bye", "slt", 5, 1)
    start = round((0.06 + 0.2 + 0.05) * 24000)

    quiet = speech.audio[start : start + 10_000]

    assert quiet.std() == pytest.approx(NOISE_SIGMA, rel=0.1)
    assert np.abs(speech.audio[2000:5000]).max() > 0.1


def test_speed_stretches_the_voice_and_the_pauses(flite_calls):
    speech = speak("hello, bye", "slt", 0, 1)

    assert "duration_stretch=1.3382" in flite_calls()
    assert silences_s(speech)[:2] == pytest.approx([0.0803, 0.1873], abs=1e-3)


def test_a_seed_draws_the_noise(flite_calls):
    first, again, other = (speak("hello", "slt", 5, seed).audio for seed in (1, 1, 2))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_loud_voice_stays_below_the_peak(flite_calls, monkeypatch):
    monkeypatch.setitem(speak.__globals__["GAINS"], "slt", 10.0)

    assert 0.85 < np.abs(speak("hello", "slt", 5, 1).audio).max() < 0.9


def test_a_pause_that_was_not_asked_is_an_error(flite_calls):
    with pytest.raises(TeacherError, match="got 2 phrases"):
        speak("i am sorry now", "slt", 5, 1)


def test_a_failing_flite_is_named_with_what_it_said(flite_calls, monkeypatch):
    monkeypatch.setitem(read_phrases.__globals__["LETTER_NAMES"], "z", "crash")

    with pytest.raises(FliteError, match="flite fell over"):
        speak("z", "slt", 5, 1)


def test_a_missing_flite_is_named_with_its_package(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(FliteError, match="package `flite`"):
        speak("hello", "slt", 5, 1)


@pytest.mark.parametrize(("voice", "speed"), [("kal", 5), ("slt", 10), ("slt", -1)])
def test_an_unknown_voice_or_speed_is_refused(voice, speed):
    with pytest.raises(ValueError, match="wanted"):
        speak("hello", voice, speed, 1)


@pytest.mark.parametrize("text", ["", ".", "[uv_break]", "don't", "caf\u00e9", "nine 9"])
def test_a_text_that_nobody_can_say_is_an_error(text):
    with pytest.raises(TeacherError):
        read_phrases(text)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("the word is zw.", ["the word is zee double you"]),
        ("nine a m", ["nine ay em"]),
        ("nine p m in a house", ["nine pea em in a house"]),
        ("a, a house, a", ["uh", "a house", "uh"]),
        ("cat bat", ["cat bee ay tea"]),
    ],
)
def test_letters_are_spelled_and_a_lone_a_is_the_article(text, phrases):
    assert as_flite_sees(read_phrases(text)) == phrases


def test_the_longest_of_adjacent_marks_counts():
    phrases = read_phrases("[uv_break] hello, [uv_break] my. friend, [lbreak]")

    assert as_flite_sees(phrases) == ["hello", "my", "friend"]
    assert phrases.marks == [0, 3, 5, 9]
    assert phrases.before_s == 0.25
    assert phrases.after_s == [0.25, 0.25, 0.55]
