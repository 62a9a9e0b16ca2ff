"""What the shipped voice sounds like through the whole server, by a recogniser's judgement.

The recogniser knows the words of the vocabulary and no sentence. What it makes of the teacher's
recordings of the same sentences is the yardstick.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stream_calls import samples_of, stream
from triton_calls import RunningServer, Speech

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.voices.speaker import encode_speaker
from training.domain import WORDS
from training.gate_sentences import Recording, read_recordings
from training.mandarin.domain import is_held_out as is_held_out_in_mandarin
from training.mandarin.templates import features, nearest
from training.pitch import pitch_hz
from training.recognizer import ErrorRate, Recognizer, said_words
from training.sentences import is_held_out
from training.speakers import speaker_vector
from training.teacher import VOICES

TEACHER = Path(__file__).parents[1] / "data" / "teacher"
GATE = TEACHER / "gate"
MARGIN = 0.08  # of words, above the teacher's rate
LEAST_MANDARIN = 0.9  # of sentences, nearest to the teacher's own recording of them
NO_SPEECH = 0.9  # at least so many words are heard wrong where other ones are said, or none
STREAM_TOLERANCE = 1e-5
SEED = 1
SHORT_TEXTS = ["the red car was new.", "please open the window", "my brother has seven books."]
# Both would be a multiple of it if a voice strayed to a neighbouring octave.
PITCH_TOLERANCE = 0.15
# The recogniser hears about a quarter of the teacher's letters wrong, nearly all of other sounds.
MOST_LETTERS_WRONG = 0.5

Heard = list[list[str]]


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return read_recordings(GATE)


@pytest.fixture(scope="module")
def recognizers() -> dict[str, Recognizer]:
    return {voice: Recognizer(WORDS, voice=voice) for voice in VOICES}


@pytest.fixture(scope="module")
def teacher_heard(recordings: list[Recording], recognizers: dict[str, Recognizer]) -> Heard:
    return [recognizers[each.voice].words(each.audio, SAMPLE_RATE_HZ) for each in recordings]


@pytest.fixture(scope="module")
def spoken(demo_voice_server: RunningServer, recordings: list[Recording]) -> list[Speech]:
    return [say(demo_voice_server, each.written, each.voice) for each in recordings]


def say(server: RunningServer, text: str, voice: str = VOICES[0], **options: object) -> Speech:
    settings = {"SEED": SEED, "LANG": "en", "VOICE": speaker(server, voice)} | options
    return server.speak_one(text, **settings)


def speaker(server: RunningServer, voice: str) -> str:
    return encode_speaker(speaker_vector(voice, server.manifest.dims.hidden_size))


def duration_s(server: RunningServer, texts: list[str], **options: object) -> float:
    speeches = [say(server, text, **options) for text in texts]
    assert {speech.finish_reason for speech in speeches} == {"stop"}
    return sum(len(speech.samples) for speech in speeches) / SAMPLE_RATE_HZ


def rate_of(texts: list[str], heard: Heard) -> float:
    rate = ErrorRate()
    for text, words in zip(texts, heard, strict=True):
        rate.add(said_words(text), words)
    return rate.rate


def test_the_sentences_of_the_gate_were_kept_from_training(recordings: list[Recording]):
    assert len(recordings) == 20
    assert all(is_held_out(each.text) for each in recordings)
    assert {each.voice for each in recordings} == set(VOICES)
    assert any(each.written != each.text for each in recordings), "no figures"


def test_held_out_sentences_are_understood_nearly_as_well_as_the_teachers(
    recordings: list[Recording],
    recognizers: dict[str, Recognizer],
    teacher_heard: Heard,
    spoken: list[Speech],
):
    heard = [
        recognizers[each.voice].words(speech.samples, SAMPLE_RATE_HZ)
        for each, speech in zip(recordings, spoken, strict=True)
    ]

    texts = [each.text for each in recordings]
    rate, teachers_rate = rate_of(texts, heard), rate_of(texts, teacher_heard)
    assert {speech.finish_reason for speech in spoken} == {"stop"}
    assert rate <= teachers_rate + MARGIN, f"teacher {teachers_rate:.3f}"


def test_other_sentences_would_not_pass(recordings: list[Recording], teacher_heard: Heard):
    texts = [each.text for each in recordings]

    rate = rate_of(texts, [*teacher_heard[2:], *teacher_heard[:2]])

    assert rate >= NO_SPEECH


def test_mandarin_sentences_resemble_the_teachers_recordings_of_them(
    demo_voice_server: RunningServer,
):
    recordings = read_recordings(TEACHER / "mandarin")
    assert len(recordings) == 20
    assert all(is_held_out_in_mandarin(each.text) for each in recordings)
    templates = {
        voice: {each.text: features(each.audio) for each in recordings if each.voice == voice}
        for voice in VOICES
    }

    nearest_texts = [
        nearest(
            np.array(say(demo_voice_server, each.written, each.voice, LANG="zh").samples),
            templates[each.voice],
        )
        for each in recordings
    ]

    is_found = [text == each.text for text, each in zip(nearest_texts, recordings, strict=True)]
    assert np.mean(is_found) >= LEAST_MANDARIN


def test_random_weights_would_not_pass(
    int8_server: RunningServer,
    recordings: list[Recording],
    recognizers: dict[str, Recognizer],
):
    few = recordings[:6]
    noise = [int8_server.speak_one(each.written, SEED=SEED, MAX_NEW_TOKENS=150) for each in few]

    heard = [
        recognizers[each.voice].words(speech.samples, SAMPLE_RATE_HZ)
        for each, speech in zip(few, noise, strict=True)
    ]

    assert rate_of([each.text for each in few], heard) >= NO_SPEECH


def test_each_voice_has_the_pitch_of_its_teacher(recordings: list[Recording], spoken: list[Speech]):
    for voice in VOICES:
        pairs = [
            (each.audio, speech.samples)
            for each, speech in zip(recordings, spoken, strict=True)
            if each.voice == voice
        ]
        teacher_hz, model_hz = (
            np.concatenate([pitch_hz(audio, SAMPLE_RATE_HZ) for audio in side]).mean()
            for side in zip(*pairs, strict=True)
        )
        assert model_hz == pytest.approx(teacher_hz, rel=PITCH_TOLERANCE)


def test_no_sentence_is_cut_and_none_runs_on(recordings: list[Recording], spoken: list[Speech]):
    shares = [
        len(speech.samples) / len(each.audio)
        for each, speech in zip(recordings, spoken, strict=True)
    ]

    assert min(shares) > 0.6
    assert max(shares) < 1.6


def test_a_higher_speed_takes_less_time(demo_voice_server: RunningServer):
    slow_s, usual_s, fast_s = (
        duration_s(demo_voice_server, SHORT_TEXTS, SPEED=speed) for speed in (0, 5, 9)
    )

    assert slow_s > 1.1 * usual_s
    assert usual_s > 1.1 * fast_s


@pytest.mark.parametrize(("tag", "least_s"), [("[uv_break]", 0.1), ("[lbreak]", 0.3)])
def test_a_break_makes_a_pause(demo_voice_server: RunningServer, tag: str, least_s: float):
    paused = [
        f"the red car {tag} was new.",
        f"please open {tag} the window",
        f"my brother {tag} has seven books.",
    ]

    plain_s = duration_s(demo_voice_server, SHORT_TEXTS)
    paused_s = duration_s(demo_voice_server, paused)

    assert paused_s - plain_s >= least_s * len(paused)


def test_the_stream_quality_is_the_audio_of_the_whole_call(demo_voice_server: RunningServer):
    text = "On Monday the red train arrived at 7:45 and we went to the market."
    whole = say(demo_voice_server, text)

    chunks = stream(
        demo_voice_server,
        text,
        SEED=SEED,
        LANG="en",
        VOICE=speaker(demo_voice_server, VOICES[0]),
        MODE="quality",
    )

    joined = samples_of(chunks)
    assert len(chunks) > 1
    assert joined.shape == whole.samples.shape
    assert np.abs(joined - whole.samples).max() <= STREAM_TOLERANCE


def test_a_refinement_gives_the_text_back(
    demo_voice_server: RunningServer, recordings: list[Recording]
):
    texts = [each.text for each in recordings[:8]]

    outputs = demo_voice_server.call(
        "chattts",
        {
            "TEXT": [[text.encode()] for text in texts],
            "SEED": [[SEED]] * len(texts),
            "REFINE": [[True]] * len(texts),
            "MAX_NEW_TOKENS": [[1]] * len(texts),
        },
    )

    assert [row[0].decode() for row in outputs["REFINED_TEXT"]] == texts
    assert {row[0] for row in outputs["WARNINGS"]} == {b"[]"}


def test_a_word_outside_the_vocabulary_is_spelled(demo_voice_server: RunningServer):
    words = ["bach", "xylem", "quiz", "film", "fjord"]
    recognizer = Recognizer([], voice=VOICES[0])

    heard = [
        recognizer.words(say(demo_voice_server, word).samples, SAMPLE_RATE_HZ) for word in words
    ]

    assert rate_of(words, heard) <= MOST_LETTERS_WRONG
