"""Sentences that no training has seen, each with what somebody would type to have it said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chattts_triton.constants import DEFAULT_SPEED
from training.sentences import SentenceSource, words_of
from training.teacher import VOICES, Speech, TeacherError, speak

# Of so many sentences one is written with figures.
_FIGURES_ONE_IN = 3


@dataclass(frozen=True)
class Sentence:
    """A sentence that the teacher can say.

    Attributes:
        written: What is sent; in English, with figures in some.
        text: The same as the tokenizer gets it.
        speech: What the teacher makes of it at the usual speed, by voice.
    """

    written: str
    text: str
    speech: dict[str, Speech]


def held_out_sentences(
    seed: int, count: int, min_words: int, max_words: int, voices: Iterable[str] = VOICES
) -> list[Sentence]:
    """Sentences of so many words, none of them twice; the same seed gives the same.

    Raises:
        FliteError: The teacher is missing.
    """
    chosen: dict[str, Sentence] = {}
    for written, text in _drawn(seed, min_words, max_words):
        if len(chosen) == count:
            break
        if text not in chosen:
            try:
                speech = {voice: speak(text, voice, DEFAULT_SPEED, seed=0) for voice in voices}
            except TeacherError:
                continue  # flite pauses where nothing asks for it: no measure of anything
            chosen[text] = Sentence(written, text, speech)
    return list(chosen.values())


def _drawn(seed: int, min_words: int, max_words: int) -> Iterator[tuple[str, str]]:
    source = SentenceSource(seed, held_out=True)
    number = 0
    while True:
        if number % _FIGURES_ONE_IN:
            text = source.sentence(min_words, max_words)
            written = text
        else:
            written, text = source.figures_as_written(max_words)
        if len(words_of(text)) >= min_words:
            number += 1
            yield written, text


def unknown_words(seed: int, count: int) -> list[str]:
    """Words outside the vocabulary, alone, each once."""
    source = SentenceSource(seed, held_out=True)
    chosen: list[str] = []
    while len(chosen) < count:
        word = source.spelled().rstrip(".")
        if " " not in word and word not in chosen:
            chosen.append(word)
    return chosen
