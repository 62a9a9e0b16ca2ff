"""espeak-ng as the teacher of Mandarin: syllables to sound, with the end of every phone.

The library is called in process, since the program does not tell the times of phones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

from training.teacher import FLITE_RATE_HZ

Audio = npt.NDArray[np.float32]

# By the voice of the first stage whose speaker vector they go with: espeak's variants.
VARIANTS = {"slt": "cmn-latn-pinyin+f2", "rms": "cmn-latn-pinyin+m3"}
WORDS_PER_MINUTE = 160
_VOWELS = "aeiouyAEIOUY@"
_SILENCE = "_"  # begins the name of every pause
_SYNCHRONOUS = 2
_PHONE_EVENTS = 1
_RATE = 1  # of espeak_PARAMETER
_UTF8 = 1
_WORD, _PHONE = 1, 7  # of espeak_EVENT_TYPE


class EspeakError(Exception):
    """The library is missing, or refused a call."""


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


@dataclass(frozen=True)
class Phone:
    """One phone of a phrase.

    Attributes:
        name: espeak's; a vowel bears the tone of its syllable.
        syllable: Place of its syllable in the phrase.
        start_s, end_s: In the audio of the phrase.
    """

    name: str
    syllable: int
    start_s: float
    end_s: float


def say(syllables: Sequence[str], voice: str, stretch: float) -> tuple[Audio, list[Phone]]:
    """Say one phrase: (S,) float32 at 16 kHz, and its phones.

    Args:
        syllables: Pinyin with tone numbers.
        voice: A key of VARIANTS.
        stretch: Of the duration.

    Raises:
        EspeakError: The library is missing, or refused a call.
    """
    library = _library()
    _check(library.espeak.espeak_SetVoiceByName(VARIANTS[voice].encode()), "voice")
    rate = round(WORDS_PER_MINUTE / stretch)
    _check(library.espeak.espeak_SetParameter(_RATE, rate, 0), "rate")
    samples, events = library.synthesize(" ".join(syllables))
    audio = resample_poly(samples.astype(np.float32) / 32768, FLITE_RATE_HZ, library.rate_hz)
    return audio.astype(np.float32), phones_of(events, syllables)


def phones_of(events: list[tuple[int, float, str]], syllables: Sequence[str]) -> list[Phone]:
    """Phones up to where the next one starts; what espeak calls nothing is silence or glide."""
    phones: list[Phone] = []
    syllable = -1
    for (kind, start_s, name), (_, end_s, _) in pairwise(events):
        if kind == _WORD:
            syllable += 1
        elif name and not name.startswith(_SILENCE):
            tone = syllables[syllable][-1] if name[0] in _VOWELS else ""
            phones.append(Phone(name + tone, syllable, start_s, end_s))
    return phones


def _check(status: int, what: str) -> None:
    if status:
        raise EspeakError(f"espeak-ng refused its {what} with {status}")


class Library:
    """The loaded library, and what its callback has collected."""

    def __init__(self, name: str) -> None:
        try:
            self.espeak = ctypes.CDLL(name)
        except OSError as error:
            message = "espeak-ng is not installed; it is Debian's package `espeak-ng`"
            raise EspeakError(message) from error
        self.rate_hz = self.espeak.espeak_Initialize(_SYNCHRONOUS, 0, None, _PHONE_EVENTS)
        self._callback = _Callback(self._collect)  # kept, as the library holds no reference
        self.espeak.espeak_SetSynthCallback(self._callback)
        self._pieces: list[npt.NDArray[np.int16]] = []
        self._events: list[tuple[int, float, str]] = []

    def synthesize(self, text: str) -> tuple[npt.NDArray[np.int16], list[tuple[int, float, str]]]:
        """Samples, and events as their kind, time in seconds and phone."""
        self._pieces, self._events = [], []
        raw = text.encode()
        _check(self.espeak.espeak_Synth(raw, len(raw) + 1, 0, 1, 0, _UTF8, None, None), "text")
        return np.concatenate(self._pieces), self._events

    def _collect(self, samples: ctypes._Pointer, count: int, events: ctypes._Pointer) -> int:
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while (event := events[index]).type:
            if event.type in (_WORD, _PHONE):
                name = ""
                if event.type == _PHONE:
                    name = bytes(event.id.string).split(b"\0")[0].decode(errors="replace")
                self._events.append((event.type, event.audio_position_ms / 1000, name))
            index += 1
        return 0


@cache
def _library() -> Library:
    return Library("libespeak-ng.so.1")
