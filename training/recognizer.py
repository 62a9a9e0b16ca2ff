"""The judge: pocketsphinx hears words of a closed vocabulary, in any order, each equally likely.

Owns the dictionary, the language model and the counting of word errors. It knows no sentence of
the domain, so a lower rate can only come from clearer speech.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log10
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from pocketsphinx import Decoder, get_model_path
from scipy.signal import resample_poly

from training.domain import HOMOPHONES, WORDS

RATE_HZ = 16_000  # of the acoustic model
MARGIN_S = 0.3
NOISE_SIGMA = 3e-5
LANGUAGE_WEIGHT = 7.5
LETTER_SHARE = 0.1  # of a word's probability: short names are heard in every longer word
# By how much each voice is played slower and so lower. The acoustic model knows few voices as
# high as slt: at its own pitch it hears about twice as many words wrong.
SLOWDOWNS = {"slt": Fraction(8, 7), "rms": Fraction(24, 25)}


class Recognizer:
    """Hears words; use one in one process and thread.

    Every utterance is heard alone: no result depends on what was heard before.

    Args:
        words: The vocabulary; each word is in pocketsphinx's English dictionary.
        letters: Whether the names of the 26 letters may be heard as well.
        voice: Whose speech it is, one of the teacher's; None for speech of unknown pitch.

    Raises:
        ValueError: A word is not in the dictionary, or `voice` is unknown.
    """

    def __init__(
        self, words: Sequence[str], letters: bool = True, voice: str | None = None
    ) -> None:
        if voice is not None and voice not in SLOWDOWNS:
            raise ValueError(f"voice: got {voice!r}, wanted one of {tuple(SLOWDOWNS)}")
        self._slowdown = SLOWDOWNS[voice] if voice else Fraction(1)
        heard = [*words, *ascii_lowercase] if letters else words
        self._decoder = _decoder(_pronunciations(heard))

    def words(self, audio: npt.NDArray[np.float32], sample_rate_hz: int) -> list[str]:
        """The words heard, homophones folded.

        Args:
            audio: (S,) float32 in [-1, 1].
            sample_rate_hz: Of `audio`.
        """
        ratio = RATE_HZ * self._slowdown / sample_rate_hz
        speech = resample_poly(audio, ratio.numerator, ratio.denominator)
        noise = np.random.default_rng(0).normal(0, NOISE_SIGMA, round(MARGIN_S * RATE_HZ))
        heard = np.clip(np.concatenate([noise, speech, noise]), -1, 1)
        # The front end would keep means and levels of what it heard before.
        self._decoder.reinit_feat()
        self._decoder.start_utt()
        self._decoder.process_raw((heard * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return hypothesis.hypstr.split() if hypothesis else []


@dataclass
class ErrorRate:
    """Word errors over any number of utterances."""

    errors: int = 0
    words: int = 0

    def add(self, said: Sequence[str], heard: Sequence[str]) -> None:
        """Count one utterance."""
        self.errors += word_errors(said, heard)
        self.words += len(said)

    @property
    def rate(self) -> float:
        """Errors per word said; 0.0 before anything was said."""
        return self.errors / self.words if self.words else 0.0


def said_words(text: str) -> list[str]:
    """What is said where a text of the domain is spoken: its words, an unknown one as letters."""
    pieces = [piece.rstrip(",.") for piece in text.split() if not piece.startswith("[")]
    known = frozenset(WORDS)
    return [said for piece in pieces for said in ([piece] if piece in known else piece)]


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words replaced, left out or put in between, homophones counted as the same word."""
    said = [_folded(word) for word in said]
    row = list(range(len(heard) + 1))
    for num_said, said_word in enumerate(said, 1):
        before, row = row, [num_said]
        for place, heard_word in enumerate(map(_folded, heard)):
            replaced = before[place] + (said_word != heard_word)
            row.append(min(replaced, before[place + 1] + 1, row[-1] + 1))
    return row[-1]


def _folded(word: str) -> str:
    return HOMOPHONES.get(word, word)


def _model(name: str) -> Path:
    return Path(get_model_path()) / "en-us" / name


def _pronunciations(words: Sequence[str]) -> dict[str, list[str]]:
    """The ways to say each word that may be heard; words of one sound share theirs."""
    wanted = frozenset(words)
    found: dict[str, list[str]] = {}
    for line in _model("cmudict-en-us.dict").read_text("utf-8").splitlines():
        entry, phones = line.split(maxsplit=1)
        word = entry.split("(")[0]
        if word in wanted:
            found.setdefault(word, []).append(phones)
    if missing := sorted(wanted - found.keys()):
        raise ValueError(f"words: got {missing}, wanted words of pocketsphinx's dictionary")
    folded: dict[str, list[str]] = {}
    for word in sorted(wanted):
        ways = folded.setdefault(_folded(word), [])
        ways += [phones for phones in found[word] if phones not in ways]
    return folded


def _decoder(pronunciations: Mapping[str, Sequence[str]]) -> Decoder:
    """A decoder whose language model knows the words and no order of them."""
    dictionary = [
        f"{word}({number}) {phones}" if number > 1 else f"{word} {phones}"
        for word, ways in pronunciations.items()
        for number, phones in enumerate(ways, 1)
    ]
    with TemporaryDirectory() as folder:
        dictionary_path, language_path = Path(folder, "words.dict"), Path(folder, "words.lm")
        dictionary_path.write_text("\n".join(dictionary) + "\n")
        language_path.write_text(_language_model(pronunciations))
        return Decoder(
            hmm=str(_model("en-us")),
            dict=str(dictionary_path),
            lm=str(language_path),
            lw=LANGUAGE_WEIGHT,
            fwdflatlw=LANGUAGE_WEIGHT,
            bestpathlw=LANGUAGE_WEIGHT,
            loglevel="FATAL",
        )


def _language_model(words: Mapping[str, Sequence[str]]) -> str:
    """Unigrams in ARPA's format: all words alike, letters that are no words rarer."""
    shares = {word: LETTER_SHARE if len(word) == 1 and word not in WORDS else 1.0 for word in words}
    total = sum(shares.values()) + 1
    unigrams = [f"{log10(share / total):.4f} {word}" for word, share in shares.items()]
    unigrams += ["-99 <s>", f"{log10(1 / total):.4f} </s>"]
    header = ["\\data\\", f"ngram 1={len(unigrams)}", "", "\\1-grams:"]
    return "\n".join([*header, *unigrams, "", "\\end\\", ""])
