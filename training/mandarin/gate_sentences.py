"""The Chinese sentences of the quality gate, with the teacher's recordings of them.

Usage, from the root of the repository: python -m training.mandarin.gate_sentences
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chattts_triton.constants import DEFAULT_SPEED
from training.gate_sentences import Recording, write_recordings
from training.mandarin.domain import held_out_sentences
from training.mandarin.teacher import speak
from training.teacher import VOICES

DIRECTORY = Path("tests/data/teacher/mandarin")
_COUNT = 20


def mandarin() -> Iterator[Recording]:
    """Draw the sentences and have the teacher say them, the voices in turns."""
    for number, text in enumerate(held_out_sentences(_COUNT)):
        voice = VOICES[number % len(VOICES)]
        yield Recording(text, text, voice, speak(text, voice, DEFAULT_SPEED, seed=0).audio)


if __name__ == "__main__":
    write_recordings(DIRECTORY, mandarin())
