"""How much of the demonstration voice's Mandarin is what its teacher says, by nearest template.

Every character alone, and held-out sentences, in both voices through the whole server (int8).
The teacher at another pace, and its copies through Vocos and the DVAE, say what the judge can tell.
Writes benchmarks/results/voice_mandarin.json.
Usage: python benchmarks/voice_mandarin.py [--checkpoint DIR] [--sentences N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from machine import describe_machine
from prepared import RESULTS, ROOT
from voice_copies import CopySynthesis
from voice_speaker import Speaker, serving
from voice_tables import mandarin

from chattts_triton.constants import DEFAULT_SPEED
from training.mandarin.domain import CHARACTERS, held_out_sentences, syllables
from training.mandarin.teacher import speak
from training.mandarin.templates import features, nearest
from training.teacher import VOICES

Say = Callable[[str], npt.NDArray[np.float32]]
OTHER_SPEED = DEFAULT_SPEED - 2


def share_found(texts: list[str], voice: str, say: Say) -> float:
    """Of texts whose sound resembles the teacher's recording of them more than of any other."""
    named = {"".join(syllables(text)): text for text in reversed(texts)}
    templates = {
        name: features(speak(text, voice, DEFAULT_SPEED, seed=0).audio)
        for name, text in named.items()
    }
    found = [nearest(say(text), templates) == "".join(syllables(text)) for text in texts]
    return float(np.mean(found))


def measure(checkpoint: Path, num_sentences: int) -> dict[str, Any]:
    """Shares by kind of text, speaker and voice."""
    copies = CopySynthesis(checkpoint)
    kinds = {"characters": list(CHARACTERS), "sentences": held_out_sentences(num_sentences)}
    shares: dict[str, Any] = {}
    with serving(checkpoint, "int8") as speaker:
        for voice in VOICES:
            for name, say in _speakers(voice, copies, speaker).items():
                row = {kind: share_found(texts, voice, say) for kind, texts in kinds.items()}
                shares[f"{name}, {voice}"] = row
                print(f"{name}, {voice}", row, flush=True)
    return {"texts": {kind: len(texts) for kind, texts in kinds.items()}, "shares": shares}


def _speakers(voice: str, copies: CopySynthesis, speaker: Speaker) -> dict[str, Say]:
    def teacher(text: str) -> npt.NDArray[np.float32]:
        return speak(text, voice, DEFAULT_SPEED, seed=1).audio

    return {
        "teacher at another speed": lambda text: speak(text, voice, OTHER_SPEED, seed=1).audio,
        "Vocos copy": lambda text: copies.through_vocos(teacher(text)),
        "DVAE copy": lambda text: copies.through_codes(teacher(text)),
        "int8": lambda text: speaker.audio(text, voice, lang="zh").samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "assets" / "demo_voice")
    parser.add_argument("--sentences", type=int, default=60)
    args = parser.parse_args()
    result = {
        "command": f"python benchmarks/voice_mandarin.py --sentences {args.sentences}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        **measure(args.checkpoint, args.sentences),
    }
    path = RESULTS / "voice_mandarin.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{mandarin(result)}\n\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
