"""From what a caller says in VOICE to the voice itself; knows neither Triton nor the engine."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.sampling_params import MAX_SEED
from chattts_triton.voices.book_file import read_entries
from chattts_triton.voices.entry import MAX_NAME_CHARACTERS, VoiceEntry
from chattts_triton.voices.prompt_codes import PromptCodes, decode_prompt_codes, is_sample_string
from chattts_triton.voices.speaker import SpeakerStatistics, decode_speaker, speaker_embedding

CHECK_INTERVAL_S = 1.0
SEED_PREFIX = "seed:"
FORMS = f"a name of voices.json, {SEED_PREFIX}N, or a ChatTTS speaker string"
_SEED = re.compile(r"[0-9]{1,19}")
_MAX_LISTED_NAMES = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Voice:
    """What the model is given to speak with; its arrays are shared and cannot be written to."""

    embedding: npt.NDArray[np.float32]  # (H,), length 1
    prompt_codes: PromptCodes | None = None  # (P, num_vq)
    prompt_text: str = ""  # what is said in the sample, as it was written down


class VoiceBook:
    """Named voices, and every other way to say which voice is wanted; any thread may call it.

    The file is looked at once a second at most, by the first call that comes after that, and read
    again when it has changed. One that cannot be read is logged, and the former book stays.

    Args:
        path: `voices.json` of the operator; None, or a file that does not exist, is a book without
            names.
        statistics: What `seed:N` and entries with a seed are drawn from.
        shipped: The same of the checkpoint, read once; a name of the operator's wins.
        clock: Seconds that only ever grow.

    Raises:
        ModelLoadError: The file is damaged; the message names the entry and its field.
    """

    def __init__(
        self,
        path: Path | None,
        statistics: SpeakerStatistics,
        *,
        shipped: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._statistics = statistics
        self._clock = clock
        self._lock = threading.Lock()
        self._shipped: dict[str, Voice] = {}
        if shipped is not None and shipped.exists():
            self._shipped = _read_voices(shipped, statistics)
        self._voices = self._shipped
        self._signature: object = None
        self._next_check_s = clock() + CHECK_INTERVAL_S
        if path is not None:
            # Before the file is read: a change in between is then seen by the next check.
            self._signature = _signature(path)
            if self._signature is not None:
                self._voices = self._shipped | _read_voices(path, statistics)

    def resolve(self, voice: str | None, seed: int, field: str = "VOICE") -> Voice:
        """The voice that a caller asks for.

        Args:
            voice: A name, `seed:N` or a ChatTTS speaker string; empty or None draws from `seed`.
            seed: 0 to 2**63 - 1.
            field: How errors name `voice`.

        Raises:
            InvalidRequestError: There is no such voice; the message says which form it failed.
        """
        if not voice:
            return self._draw(seed, field)
        self._refresh()
        if named := self._voices.get(voice):
            return named
        if voice.startswith(SEED_PREFIX):
            return self._draw(parse_seed(voice, field), field)
        return self._read_speaker(voice, field)

    @property
    def names(self) -> list[str]:
        """Names that can be asked for, those of the checkpoint first, in the order of the files."""
        self._refresh()
        return list(self._voices)

    def _draw(self, seed: int, field: str) -> Voice:
        return _frozen(speaker_embedding(self._statistics.draw(seed), field))

    def _read_speaker(self, text: str, field: str) -> Voice:
        # A short text is more likely a name, be it of Han characters, than a piece of a string.
        might_be_name = len(text) <= MAX_NAME_CHARACTERS and not is_sample_string(text)
        try:
            vector = decode_speaker(text, self._statistics.hidden_size, field)
        except InvalidRequestError:
            if might_be_name:
                raise self._unknown(text, field) from None
            raise
        return _frozen(speaker_embedding(vector, field))

    def _unknown(self, text: str, field: str) -> InvalidRequestError:
        names = list(self._voices)
        listed = ", ".join(names[:_MAX_LISTED_NAMES])
        more = ", ..." if len(names) > _MAX_LISTED_NAMES else ""
        known = f"known names: {listed}{more}" if names else "no names are known"
        return InvalidRequestError.of(field, text, f"{FORMS}; {known}")

    def _refresh(self) -> None:
        if self._path is None or self._clock() < self._next_check_s:
            return
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it; the book of a moment ago is good enough
        try:
            self._next_check_s = self._clock() + CHECK_INTERVAL_S
            signature = _signature(self._path)
            if signature != self._signature:
                self._signature = signature
                self._reload(self._path)
        finally:
            self._lock.release()

    def _reload(self, path: Path) -> None:
        try:
            self._voices = self._shipped | _read_voices(path, self._statistics)
        except ModelLoadError as error:
            logger.error("%s; the %d voices read before stay", error, len(self._voices))
        else:
            logger.info("%s: %d voices", path, len(self._voices))


def parse_seed(text: str, field: str = "VOICE") -> int:
    """The number of `seed:N`.

    Raises:
        InvalidRequestError: N is not a whole number from 0 to 2**63 - 1.
    """
    digits = text.removeprefix(SEED_PREFIX)
    seed = int(digits) if _SEED.fullmatch(digits) else -1
    if not 0 <= seed <= MAX_SEED:
        raise InvalidRequestError.of(field, text, f"{SEED_PREFIX}N with N from 0 to {MAX_SEED}")
    return seed


def make_voice(entry: VoiceEntry, statistics: SpeakerStatistics) -> Voice:
    """The voice that an entry describes.

    Raises:
        InvalidRequestError: Its speaker or sample string is malformed, or of another model.
    """
    vector = speaker_vector(entry, statistics)
    codes = decode_prompt_codes(entry.prompt) if entry.prompt else None
    return _frozen(speaker_embedding(vector, "speaker"), codes, entry.text)


def speaker_vector(entry: VoiceEntry, statistics: SpeakerStatistics) -> npt.NDArray[np.float16]:
    """The speaker vector of an entry, (H,) float16, drawn or read.

    Raises:
        InvalidRequestError: Its speaker string is malformed, or of another width.
    """
    if entry.seed is not None:
        return statistics.draw(entry.seed)
    return decode_speaker(entry.speaker, statistics.hidden_size, "speaker")


def _frozen(
    embedding: npt.NDArray[np.float32], codes: PromptCodes | None = None, text: str = ""
) -> Voice:
    embedding.setflags(write=False)
    if codes is not None:
        codes.setflags(write=False)
    return Voice(embedding, codes, text)


def _read_voices(path: Path, statistics: SpeakerStatistics) -> dict[str, Voice]:
    voices = {}
    for name, entry in read_entries(path).items():
        try:
            voices[name] = make_voice(entry, statistics)
        except InvalidRequestError as error:
            raise ModelLoadError(f"{path}: voice {name!r}: {error}") from None
    return voices


def _signature(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file; a rename over it changes the inode at least. None: no file."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
