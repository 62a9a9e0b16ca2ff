"""The sentences of the quality gate in the tests, with the teacher's recordings of them.

Usage, from the root of the repository: python -m training.gate_sentences
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from chattts_triton.constants import SAMPLE_RATE_HZ
from training.held_out import held_out_sentences
from training.teacher import VOICES

DIRECTORY = Path("tests/data/teacher/gate")
_LIST = "sentences.json"
_SEED = 2026
_COUNT = 20
_MIN_WORDS, _MAX_WORDS = 4, 20


@dataclass(frozen=True, eq=False)
class Recording:
    """A sentence as the teacher said it.

    Attributes:
        written: What is sent to have it said.
        text: The same as the tokenizer gets it.
        voice: Whose voice it is.
        audio: (S,) float32 at 24 kHz.
    """

    written: str
    text: str
    voice: str
    audio: npt.NDArray[np.float32]


def english() -> Iterator[Recording]:
    """Draw the sentences and have the teacher say them, the voices in turns."""
    for number, sentence in enumerate(held_out_sentences(_SEED, _COUNT, _MIN_WORDS, _MAX_WORDS)):
        voice = VOICES[number % len(VOICES)]
        yield Recording(sentence.written, sentence.text, voice, sentence.speech[voice].audio)


def write_recordings(directory: Path, recordings: Iterable[Recording]) -> None:
    """Write the audio of each and a list of them."""
    directory.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, each in enumerate(recordings):
        file = f"{number:02d}.ogg"
        path = directory / file
        soundfile.write(path, each.audio, SAMPLE_RATE_HZ, format="OGG", subtype="VORBIS")
        listed.append(
            {"file": file, "voice": each.voice, "written": each.written, "text": each.text}
        )
    text = json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
    (directory / _LIST).write_text(text, encoding="utf-8")


def read_recordings(directory: Path) -> list[Recording]:
    """What `write_recordings` wrote."""
    listed = json.loads((directory / _LIST).read_text(encoding="utf-8"))
    recordings = []
    for line in listed:
        audio, rate_hz = soundfile.read(directory / line["file"], dtype="float32")
        if rate_hz != SAMPLE_RATE_HZ:
            raise ValueError(f"{line['file']}: got {rate_hz} Hz, wanted {SAMPLE_RATE_HZ}")
        recordings.append(Recording(line["written"], line["text"], line["voice"], audio))
    return recordings


if __name__ == "__main__":
    write_recordings(DIRECTORY, english())
