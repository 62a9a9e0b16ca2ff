"""The demonstration voice against its teacher, judged by a recogniser that knows no sentence.

Held-out sentences through the whole server, exported anew: fp32 and int8, both streams, both
voices, speeds, seeds, pauses, spelled words, refinement; and the teacher through Vocos and the DVAE
alone. Writes benchmarks/results/voice_report.json, and pictures and samples to docs/demo_voice/.
Usage: python benchmarks/voice_report.py [--checkpoint DIR] [--sentences N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import voice_traits
from machine import describe_machine
from prepared import RESULTS, ROOT
from voice_copies import CopySynthesis
from voice_ear import Ear
from voice_samples import draw_mels, write_samples
from voice_speaker import Speaker, serving
from voice_tables import as_tables
from voice_takes import SHORT_WORDS, Take, difference, summary

from chattts_client import Audio
from chattts_triton.constants import SAMPLE_RATE_HZ
from training.held_out import held_out_sentences
from training.teacher import VOICES

FIRST, SECOND = VOICES
MIN_WORDS, MAX_WORDS = 3, 20
NUM_FEW = 20  # sentences of what comes in many kinds
COMPARED = {
    f"fp32, {FIRST}": f"teacher, {FIRST}",
    f"int8, {FIRST}": f"fp32, {FIRST}",
    f"quality stream, {FIRST}": f"int8, {FIRST}",
    f"low_latency stream, {FIRST}": f"int8, {FIRST}",
    f"int8, {SECOND}": f"teacher, {SECOND}",
    f"Vocos copy, {FIRST}": f"teacher, {FIRST}",
    f"DVAE copy, {FIRST}": f"teacher, {FIRST}",
}
MAX_SAMPLE_CODES = 190  # about 4 s
SAMPLE_TEXTS = {
    FIRST: (FIRST, "Hello, this is the demonstration voice."),
    SECOND: (SECOND, "Hello, this is the demonstration voice."),
    "figures": (FIRST, "The red car costs $21.50."),
    "pause": (SECOND, "Good morning. [lbreak] Thank you."),
    "spelled": (FIRST, "My name is Bach."),
    "mandarin": (FIRST, "你好，今天是星期三。"),
}


class Report:
    """Collects the rows of the report; each is spoken first and heard after it.

    Args:
        checkpoint: Holds asset/...
        num_sentences: Half of them of up to 12 words, half of up to 20.
        ear: Listens.
    """

    def __init__(self, checkpoint: Path, num_sentences: int, ear: Ear) -> None:
        self._checkpoint = checkpoint
        self._ear = ear
        half = num_sentences // 2
        self._short = held_out_sentences(100, half, MIN_WORDS, SHORT_WORDS)
        long = held_out_sentences(101, half, SHORT_WORDS + 1, MAX_WORDS)
        self._few = [*self._short[: NUM_FEW // 2], *long[: NUM_FEW // 2]]
        self._sentences = [*self._short, *long]
        self.rows: dict[str, list[Take]] = {}
        self.samples: dict[str, Audio] = {}

    def measure(self) -> dict[str, Any]:
        """Everything; `rows` and `samples` have the audio."""
        self._measure_teacher()
        with serving(self._checkpoint, "fp32") as speaker:
            self._say("fp32", FIRST, speaker)
        with serving(self._checkpoint, "int8") as speaker:
            self._say("int8", FIRST, speaker)
            self._say("quality stream", FIRST, speaker, mode="quality")
            self._say("low_latency stream", FIRST, speaker, mode="low_latency")
            self._say("int8", SECOND, speaker)
            traits = self._measure_traits(speaker)
            self.samples = {
                name: speaker.audio(text, voice, max_new_tokens=MAX_SAMPLE_CODES)
                for name, (voice, text) in SAMPLE_TEXTS.items()
            }
        return {
            "rows": {name: summary(takes) for name, takes in self.rows.items()},
            "differences": {
                name: {"against": other, **difference(self.rows[name], self.rows[other])}
                for name, other in COMPARED.items()
            },
            **traits,
        }

    def _measure_teacher(self) -> None:
        copies = CopySynthesis(self._checkpoint)
        said = {voice: [each.speech[voice].audio for each in self._sentences] for voice in VOICES}
        for voice in VOICES:
            self._hear_teacher("teacher", voice, said[voice])
        self._hear_teacher("Vocos copy", FIRST, list(map(copies.through_vocos, said[FIRST])))
        self._hear_teacher("DVAE copy", FIRST, list(map(copies.through_codes, said[FIRST])))

    def _hear_teacher(
        self, kind: str, voice: str, audios: Sequence[npt.NDArray[np.float32]]
    ) -> None:
        takes = [
            Take(sentence.text, voice, audio, len(sentence.speech[voice].audio) / SAMPLE_RATE_HZ)
            for sentence, audio in zip(self._sentences, audios, strict=True)
        ]
        self._hear(f"{kind}, {voice}", takes)

    def _say(self, kind: str, voice: str, speaker: Speaker, **options: Any) -> None:
        name = f"{kind}, {voice}"
        self._hear(name, speaker.say_all(self._sentences, name, voice, **options))

    def _hear(self, name: str, takes: list[Take]) -> None:
        self._ear.listen(takes)
        self.rows[name] = takes

    def _measure_traits(self, speaker: Speaker) -> dict[str, Any]:
        names = [f"{kind}, {voice}" for voice in VOICES for kind in ("teacher", "int8")]
        return {
            "pitch": voice_traits.pitches({name: self.rows[name] for name in names}),
            "speeds": voice_traits.speeds(speaker, self._ear, self._few),
            "seeds": voice_traits.seeds(speaker, self._ear, self._few),
            "breaks": voice_traits.breaks(speaker, self._short[:NUM_FEW]),
            "spelled": voice_traits.spelled(speaker, self._ear),
            "refined": voice_traits.refined(speaker, self._few),
        }


def write_pictures(report: Report, directory: Path) -> None:
    """The first short sentence in each voice, the teacher above the model."""
    for voice in VOICES:
        takes = {name: report.rows[f"{name}, {voice}"][0] for name in ("teacher", "int8")}
        audios = {f"{name}, {voice}": take.audio for name, take in takes.items()}
        draw_mels(directory / f"mel_{voice}.png", takes["teacher"].text, audios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "assets" / "demo_voice")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "demo_voice")
    parser.add_argument("--results", type=Path, default=RESULTS / "voice_report.json")
    args = parser.parse_args()
    began_s = time.perf_counter()
    with Ear() as ear:
        report = Report(args.checkpoint, args.sentences, ear)
        measured = report.measure()
    result = {
        "command": f"python benchmarks/voice_report.py --sentences {args.sentences}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "minutes": round((time.perf_counter() - began_s) / 60, 1),
        **measured,
    }
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_tables(result))
    write_pictures(report, args.docs)
    write_samples(args.docs, report.samples)
    print(f"\nwritten to {args.results} and {args.docs}")


if __name__ == "__main__":
    main()
