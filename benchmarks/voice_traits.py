"""What a voice does beside saying words: pitch, speeds, seeds, pauses, spelling, refinement."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm
from voice_ear import Ear
from voice_speaker import Speaker
from voice_takes import Take, summary

from chattts_triton.constants import DEFAULT_SPEED, MAX_SPEED, MIN_SPEED, SAMPLE_RATE_HZ
from training.held_out import Sentence, unknown_words
from training.pitch import pitch_hz
from training.teacher import VOICES, TeacherError, speak

VOICE = VOICES[0]
HEARD_SPEEDS = (3, 5, 7)
SEEDS = (1, 2, 3, 4, 5)
BREAKS = ("[uv_break]", "[lbreak]")
NUM_UNKNOWN = 20


def pitches(rows: Mapping[str, Sequence[Take]]) -> dict[str, Any]:
    """Mean and median of each row, and how many of its sentences are on its voice's side.

    Args:
        rows: Takes of one voice each, by `SPEAKER, VOICE`; those of the speaker `teacher` say where
            the middle between the voices is.
    """
    found = {
        name: [pitch_hz(take.audio, SAMPLE_RATE_HZ) for take in takes]
        for name, takes in rows.items()
    }
    teachers_hz = {voice: mean(np.concatenate(found[f"teacher, {voice}"])) for voice in VOICES}
    middle_hz = mean(list(teachers_hz.values()))
    table = {}
    for name, sentences in found.items():
        is_high = teachers_hz[name.rpartition(", ")[2]] > middle_hz
        frames = np.concatenate(sentences)
        table[name] = {
            "mean_hz": mean(frames),
            "median_hz": float(np.median(frames)) if len(frames) else 0.0,
            "told_apart": mean([(mean(hz) > middle_hz) is is_high for hz in sentences]),
        }
    return table


def speeds(speaker: Speaker, ear: Ear, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Durations at every speed, and rates at some."""
    found: dict[str, Any] = {}
    for speed in range(MIN_SPEED, MAX_SPEED + 1):
        teacher = [speak(sentence.text, VOICE, speed, seed=0).audio for sentence in sentences]
        takes = speaker.say_all(sentences, f"speed {speed}", VOICE, speed=speed)
        row = {
            "mean_s": mean([take.duration_s for take in takes]),
            "teacher_mean_s": mean(list(map(len, teacher))) / SAMPLE_RATE_HZ,
        }
        if speed in HEARD_SPEEDS:
            ear.listen(takes)
            row |= summary(takes)
        found[str(speed)] = row
    return found


def seeds(speaker: Speaker, ear: Ear, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Rates by the seed of the codes."""
    found = {}
    for seed in SEEDS:
        takes = speaker.say_all(sentences, f"seed {seed}", VOICE, seed=seed)
        ear.listen(takes)
        found[str(seed)] = summary(takes)
    return found


def breaks(speaker: Speaker, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """By how much a tag in the middle of a sentence lengthens it."""
    return {tag: _break(speaker, sentences, tag) for tag in BREAKS}


def _break(speaker: Speaker, sentences: Sequence[Sentence], tag: str) -> dict[str, Any]:
    longer_s, teacher_longer_s = [], []
    for sentence in tqdm(sentences, desc=tag, file=sys.stderr):
        try:
            paused = unwritten(with_break(sentence.text, tag))
        except TeacherError:
            continue
        takes = [speaker.say(each, VOICE) for each in (sentence, paused)]
        longer_s.append(takes[1].duration_s - takes[0].duration_s)
        teacher_longer_s.append(takes[1].teacher_s - takes[0].teacher_s)
    return {
        "sentences": len(longer_s),
        "mean_longer_s": mean(longer_s),
        "teacher_mean_longer_s": mean(teacher_longer_s),
        "share_longer": mean([extra_s > 0 for extra_s in longer_s]),
    }


def with_break(text: str, tag: str) -> str:
    """The text with a tag between its two halves."""
    words = text.split()
    middle = len(words) // 2
    return " ".join([*words[:middle], tag, *words[middle:]])


def spelled(speaker: Speaker, ear: Ear) -> dict[str, Any]:
    """Words outside the vocabulary, heard among the names of the letters alone."""
    teacher, model = [], []
    for word in tqdm(unknown_words(seed=102, count=NUM_UNKNOWN), desc="spelled", file=sys.stderr):
        sentence = unwritten(word)
        model.append(speaker.say(sentence, VOICE))
        teacher.append(Take(word, VOICE, sentence.speech[VOICE].audio, model[-1].teacher_s))
    for takes in (teacher, model):
        ear.listen(takes, only_letters=True)
    return {"words": NUM_UNKNOWN, "teacher": summary(teacher), "int8": summary(model)}


def refined(speaker: Speaker, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """How many texts a refinement gives back as they were."""
    copies = [
        speaker.audio(sentence.text, VOICE, refine=True, max_new_tokens=1).refined_text
        == sentence.text
        for sentence in tqdm(sentences, desc="refined", file=sys.stderr)
    ]
    return {"texts": len(copies), "copied_exactly": sum(copies)}


def unwritten(text: str) -> Sentence:
    """A text that is sent as the tokenizer gets it.

    Raises:
        TeacherError: The teacher cannot say it as it is meant.
    """
    return Sentence(text, text, {VOICE: speak(text, VOICE, DEFAULT_SPEED, seed=0)})


def mean(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """0.0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
