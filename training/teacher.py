"""The teacher: Debian's flite speaks a text of the domain, with pauses that the text sets.

Owns the respelling of letters, the marks of a pause, the level and the noise floor. Knows
nothing of tokens, codes or models.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt
from scipy.io import wavfile
from scipy.signal import resample_poly

from chattts_triton.constants import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from training.domain import WORDS

Audio = npt.NDArray[np.float32]

VOICES = ("slt", "rms")
SILENCE = "pau"
UNKNOWN_UNIT = -1
SILENCE_BEFORE_S = 0.06
SILENCE_AFTER_S = 0.10
PAUSES_S = {",": 0.14, ".": 0.25, "[uv_break]": 0.25, "[lbreak]": 0.55}

FLITE_RATE_HZ = 16_000
FADE_S = 0.005
NOISE_SIGMA = 3e-5
PEAK = 0.89
# One factor a voice, which brings its speech without the silences to an RMS of 0.08.
GAINS = {"slt": 0.425, "rms": 0.83}

_SPELLINGS = (
    "ay bee see dee ee eff gee aitch eye jay kay el em en oh pea cue are ess tea you vee "
    "double_you ex why zee"
)
LETTER_NAMES = {
    letter: name.replace("_", " ")
    for letter, name in zip(ascii_lowercase, _SPELLINGS.split(), strict=True)
}
_KNOWN = frozenset(WORDS)
Respelled = Callable[[str, str], list[str]]


class TeacherError(Exception):
    """This text cannot be taught: flite's phones do not show the pauses that were asked."""


class FliteError(Exception):
    """flite is missing or failed."""


@dataclass(frozen=True)
class Speech:
    """What the teacher said.

    Attributes:
        audio: (S,) float32 at 24 kHz, S a multiple of 512.
        phones: Each phone and its end in seconds of `audio`; silence is `pau`. The last one is
            a silence that ends with `audio`.
        units: What each phone belongs to, as the place of a word, letter or mark in the text;
            a silence to the mark that asked for it, the first one to the first unit, the last one
            to one more than there are. UNKNOWN_UNIT where flite's phones do not tell.
    """

    audio: Audio
    phones: list[tuple[str, float]]
    units: list[int]


@dataclass(frozen=True)
class Phrases:
    """A text as flite gets it: phrases and the silence after each.

    Attributes:
        phrases: Words and letters in flite's spelling, each with its place among the units of the
            text; at least one phrase, none of them empty.
        before_s: The silence before the first phrase.
        after_s: The silence after each phrase, as long as `phrases`.
        marks: The unit that each silence belongs to, one more than there are phrases.
    """

    phrases: list[list[tuple[str, int]]]
    before_s: float
    after_s: list[float]
    marks: list[int]


def speak(text: str, voice: str, speed: int, seed: int) -> Speech:
    """Speak a text of the domain.

    Args:
        text: Lower-case words, single spaces, `,` and `.` attached to the word before, tags
            `[uv_break]` and `[lbreak]`. Words outside the domain are spelled.
        voice: One of `VOICES`.
        speed: 0 (slow) to 9 (fast); 5 is flite's own pace. Pauses follow it.
        seed: Draws the noise floor.

    Raises:
        TeacherError: The text holds no word or characters nobody can spell, or flite paused
            elsewhere than asked.
        FliteError: flite is missing or failed.
        ValueError: `voice` or `speed` is unknown.
    """
    if voice not in VOICES:
        raise ValueError(f"voice: got {voice!r}, wanted one of {VOICES}")
    if speed not in range(10):
        raise ValueError(f"speed: got {speed!r}, wanted 0 to 9")
    stretch = stretch_of(speed)
    phrases = read_phrases(text)
    asked = ", ".join(" ".join(word for word, _ in phrase) for phrase in phrases.phrases)
    spoken, phones = _run_flite(asked, voice, stretch)
    runs = _speech_runs(phones)
    if len(runs) != len(phrases.phrases):
        raise TeacherError(
            f"text: got {len(runs)} phrases from flite for {text!r}, wanted {len(phrases.phrases)}"
        )
    silences_s = [stretch * silence_s for silence_s in (phrases.before_s, *phrases.after_s)]
    audio, moved = with_silences(spoken, runs, silences_s)
    units = [phrases.marks[0]]
    for phrase, run, mark in zip(phrases.phrases, runs, phrases.marks[1:], strict=True):
        units += [*_units_of(phrase, len(run), voice), mark]
    return finished(audio, moved, units, GAINS[voice], seed)


def stretch_of(speed: int) -> float:
    """What a speed multiplies every duration by."""
    return float(1.06 ** (5 - speed))


def read_phrases(text: str, respelled: Respelled | None = None) -> Phrases:
    """Cut a text at its marks of a pause and respell its words for flite.

    Of adjacent marks the longest counts. The marks of the start and of the end lengthen the
    silence there; a final `.` does not.

    Args:
        text: As `speak` gets it.
        respelled: How a word and what follows it are given to the teacher; flite's way if None.

    Raises:
        TeacherError: The text holds no word, or characters nobody can spell.
    """
    phrases: list[list[tuple[str, int]]] = [[]]
    silences_s = [SILENCE_BEFORE_S, 0.0]  # before the first phrase, after each
    marks = [0, 0]
    unit = 0
    tokens = list(_tokens(text))
    ends_with_stop = tokens[-1:] == ["."]
    for token, following in pairwise([*(tokens[:-1] if ends_with_stop else tokens), ""]):
        if token in PAUSES_S:
            place = -1 if phrases[-1] else 0
            if PAUSES_S[token] > silences_s[place]:
                silences_s[place], marks[place] = PAUSES_S[token], unit
            unit += 1
            continue
        if silences_s[-1] and phrases[-1]:
            phrases.append([])
            silences_s.append(0.0)
            marks.append(0)
        for word in (respelled or _respelled)(token, following):
            phrases[-1].append((word, unit))
            unit += 1
    if not phrases[-1]:
        raise TeacherError(f"text: got {text!r}, wanted at least one word")
    silences_s[-1] = max(silences_s[-1], SILENCE_AFTER_S)
    marks[-1] = unit + ends_with_stop
    return Phrases(phrases, silences_s[0], silences_s[1:], marks)


def _tokens(text: str) -> Iterator[str]:
    """Words and marks, each on its own."""
    for piece in text.split():
        word = piece.rstrip(",.")
        if word:
            yield word
        yield from piece[len(word) :]


def _respelled(word: str, following: str) -> list[str]:
    """A word as flite has to see it so that it says what the domain means, or its letters."""
    if word == "a" and following != "m":
        # Before a pause flite would take the article for the letter.
        return ["uh" if not following or following in PAUSES_S else "a"]
    if len(word) > 1 and word in _KNOWN:
        return [word]
    if not set(word) <= LETTER_NAMES.keys():
        raise TeacherError(f"text: got the word {word!r}, wanted letters a to z")
    return [LETTER_NAMES[letter] for letter in word]


def _units_of(phrase: list[tuple[str, int]], num_phones: int, voice: str) -> list[int]:
    """The unit of every phone of a phrase, if each word has as many as it has by itself."""
    units = [unit for word, unit in phrase for _ in range(_num_phones(word, voice))]
    return units if len(units) == num_phones else [UNKNOWN_UNIT] * num_phones


@cache
def _num_phones(word: str, voice: str) -> int:
    _, phones = _run_flite(word, voice, 1.0)
    return sum(phone != SILENCE for phone, _ in phones)


def _run_flite(text: str, voice: str, stretch: float) -> tuple[Audio, list[tuple[str, float]]]:
    """What flite says, (S,) float32 at 16 kHz, and its phones with their ends in seconds."""
    # The phones come on the standard output, so the sound needs a file; this one has no disk.
    sound = os.memfd_create("flite")
    command = ["flite", "-voice", voice, "-psdur", "--setf", f"duration_stretch={stretch:.4f}"]
    command += ["-t", text, "-o", f"/proc/self/fd/{sound}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, pass_fds=[sound])
        with open(sound, "rb", closefd=False) as file:
            wav = file.read()
    except FileNotFoundError as missing:
        raise FliteError("flite is not installed; it is Debian's package `flite`") from missing
    finally:
        os.close(sound)
    if done.returncode or not wav:
        raise FliteError(f"flite ended with {done.returncode} for {text!r}: {done.stderr.strip()}")
    rate_hz, samples = wavfile.read(io.BytesIO(wav))
    if rate_hz != FLITE_RATE_HZ:
        raise FliteError(f"flite's sample rate: got {rate_hz}, wanted {FLITE_RATE_HZ}")
    ends = (item.rpartition(":") for item in done.stdout.split())
    return samples.astype(np.float32) / 32768, [(phone, float(end)) for phone, _, end in ends]


def _speech_runs(phones: list[tuple[str, float]]) -> list[list[tuple[str, float, float]]]:
    """The phones between silences, each with its start and end in seconds."""
    runs: list[list[tuple[str, float, float]]] = []
    silent, start_s = True, 0.0
    for phone, end_s in phones:
        if phone != SILENCE:
            if silent:
                runs.append([])
            runs[-1].append((phone, start_s, end_s))
        silent, start_s = phone == SILENCE, end_s
    return runs


def with_silences(
    spoken: Audio, runs: list[list[tuple[str, float, float]]], silences_s: list[float]
) -> tuple[Audio, list[tuple[str, float]]]:
    """Join the runs of speech by silences of the lengths given, at flite's rate."""
    pieces = [np.zeros(round(silences_s[0] * FLITE_RATE_HZ), np.float32)]
    phones = [(SILENCE, len(pieces[0]) / FLITE_RATE_HZ)]
    for run, silence_s in zip(runs, silences_s[1:], strict=True):
        first = round(run[0][1] * FLITE_RATE_HZ)
        piece = _faded(spoken[first : round(run[-1][2] * FLITE_RATE_HZ)])
        silence = np.zeros(round(silence_s * FLITE_RATE_HZ), np.float32)
        start_s = phones[-1][1]
        speech_end_s = start_s + len(piece) / FLITE_RATE_HZ
        shift_s = start_s - first / FLITE_RATE_HZ
        phones += [(phone, end_s + shift_s) for phone, _, end_s in run[:-1]]
        phones.append((run[-1][0], speech_end_s))
        phones.append((SILENCE, speech_end_s + len(silence) / FLITE_RATE_HZ))
        pieces += [piece, silence]
    return np.concatenate(pieces), phones


def _faded(piece: Audio) -> Audio:
    """A copy whose ends rise from and fall to silence, so that no cut clicks."""
    ramp_samples = min(round(FADE_S * FLITE_RATE_HZ), len(piece))
    ramp = np.linspace(0, 1, ramp_samples, dtype=np.float32)
    faded = piece.copy()
    faded[:ramp_samples] *= ramp
    faded[len(piece) - ramp_samples :] *= ramp[::-1]
    return faded


def finished(
    audio: Audio,
    phones: list[tuple[str, float]],
    units: list[int],
    gain: float,
    seed: int,
) -> Speech:
    """Bring to 24 kHz, to the level and to whole codes, over the noise floor."""
    speech = resample_poly(audio, 3, 2) * gain
    peak = float(np.abs(speech).max())
    if peak > PEAK:
        speech *= PEAK / peak
    num_samples = -(-len(speech) // SAMPLES_PER_CODE) * SAMPLES_PER_CODE
    noise = np.random.default_rng(seed).normal(0, NOISE_SIGMA, num_samples)
    noise[: len(speech)] += speech
    phones = [*phones[:-1], (SILENCE, num_samples / SAMPLE_RATE_HZ)]
    return Speech(noise.astype(np.float32), phones, units)
