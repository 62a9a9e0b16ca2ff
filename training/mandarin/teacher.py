"""A Chinese text as espeak-ng says it, in the form that the English teacher has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from training.corpus import PHONES
from training.mandarin import espeak
from training.mandarin.domain import CHARACTERS, all_syllables, syllables
from training.teacher import (
    FLITE_RATE_HZ,
    Phrases,
    Speech,
    TeacherError,
    finished,
    read_phrases,
    stretch_of,
    with_silences,
)

Say = Callable[[Sequence[str], str, float], tuple[espeak.Audio, list[espeak.Phone]]]

# One factor a voice, which brings its speech to the RMS of the English voices.
_GAINS = {"slt": 0.53, "rms": 0.64}
_MARKS = str.maketrans("，。", ",.")
_KNOWN = frozenset(CHARACTERS)


def speak(text: str, voice: str, speed: int, seed: int, say: Say = espeak.say) -> Speech:
    """Speak characters of the domain, with `，` and `。` between them.

    Args:
        text: Such as `今天是星期二，你好。`.
        voice: "slt" or "rms", whose speaker vectors get a high and a low voice of espeak.
        speed: 0 (slow) to 9 (fast).
        seed: Draws the noise floor.
        say: Says the syllables of one phrase.

    Raises:
        TeacherError: A character is none of the domain, or there is none.
        EspeakError: espeak-ng is missing or refused a call.
    """
    stretch = stretch_of(speed)
    phrases = read_phrases(" ".join(text).translate(_MARKS), _respelled)
    pieces, runs, units = [], [], [phrases.marks[0]]
    start_s = 0.0
    for phrase, mark in zip(phrases.phrases, phrases.marks[1:], strict=True):
        audio, phones = say(syllables("".join(c for c, _ in phrase)), voice, stretch)
        runs.append([(p.name, start_s + p.start_s, start_s + p.end_s) for p in phones])
        units += [*(phrase[p.syllable][1] for p in phones), mark]
        pieces.append(audio)
        start_s += len(audio) / FLITE_RATE_HZ
    joined, moved = with_silences(np.concatenate(pieces), runs, _silences_s(phrases, stretch))
    return finished(joined, moved, units, _GAINS[voice], seed)


def _silences_s(phrases: Phrases, stretch: float) -> list[float]:
    return [stretch * silence_s for silence_s in (phrases.before_s, *phrases.after_s)]


def _respelled(character: str, following: str) -> list[str]:
    if character not in _KNOWN:
        raise TeacherError(f"text: got the character {character!r}, wanted one of the domain")
    return [character]


@cache
def phone_names() -> tuple[str, ...]:
    """The English phones, then those of all syllables."""
    spoken = (
        espeak.say([syllable], voice, 1.0)[1]
        for syllable in all_syllables()
        for voice in espeak.VARIANTS
    )
    return (*PHONES, *sorted({phone.name for phones in spoken for phone in phones}))
