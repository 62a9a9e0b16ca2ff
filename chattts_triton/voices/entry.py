"""One entry of voices.json: what is kept of a voice, every field checked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from chattts_triton.errors import InvalidRequestError, shorten
from chattts_triton.sampling_params import MAX_SEED

# A name holds no colon and is shorter than any speaker string, so that VOICE is never ambiguous.
MAX_NAME_CHARACTERS = 40
MAX_DESCRIPTION_CHARACTERS = 500
MAX_TRANSCRIPT_CHARACTERS = 1000
MAX_TAGS = 16
LANGUAGES = ("any", "zh", "en")

_NAME = re.compile(rf"[^\W_][\w.-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
_NAME_WANTED = (
    f"1 to {MAX_NAME_CHARACTERS} letters, digits, . _ or -, beginning with a letter or digit"
)


@dataclass(frozen=True)
class VoiceEntry:
    """A named voice: a speaker, and perhaps the codes of a sample that every prompt begins with.

    Attributes:
        name: What VOICE says to mean this voice.
        seed: Of the speaker vector, drawn as for `seed:N`; None where `speaker` is given.
        speaker: A ChatTTS speaker string; empty where `seed` is given.
        prompt: A ChatTTS sample string; empty without a sample.
        text: What is said in the sample; empty without one, or where nobody wrote it down.
        description: For people.
        language: What the voice is meant for: `any`, `zh` or `en`; for people, too.
        tags: Words to find it by.

    Raises:
        InvalidRequestError: A field is malformed; the message names it.
    """

    name: str
    seed: int | None = None
    speaker: str = ""
    prompt: str = ""
    text: str = ""
    description: str = ""
    language: str = "any"
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequestError.of("name", self.name, _NAME_WANTED)
        if (self.seed is None) == (not self.speaker):
            got = "none" if self.seed is None else "both"
            raise InvalidRequestError(f"seed, speaker: got {got}, wanted one of the two")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequestError.of("seed", self.seed, f"0 to {MAX_SEED}")
        if self.text and not self.prompt:
            raise InvalidRequestError("text: got one without a prompt, wanted both or no text")
        _check_line("text", self.text, MAX_TRANSCRIPT_CHARACTERS)
        _check_line("description", self.description, MAX_DESCRIPTION_CHARACTERS)
        if self.language not in LANGUAGES:
            raise InvalidRequestError.of("language", self.language, " or ".join(LANGUAGES))
        if len(self.tags) > MAX_TAGS or len(set(self.tags)) != len(self.tags):
            raise InvalidRequestError.of("tags", self.tags, f"at most {MAX_TAGS}, each once")
        for tag in self.tags:
            if not _NAME.fullmatch(tag):
                raise InvalidRequestError.of("tags", tag, _NAME_WANTED)

    @property
    def source(self) -> str:
        """Where the speaker comes from, in the words of VOICE where they are short."""
        return f"seed:{self.seed}" if self.seed is not None else "speaker string"

    def to_json(self) -> dict[str, Any]:
        """The value of this entry in the file, without its name and what is not set."""
        content = asdict(self) | {"tags": list(self.tags)}
        del content["name"]
        return {key: value for key, value in content.items() if value not in (None, "", [])}

    @classmethod
    def from_json(cls, name: str, content: object) -> VoiceEntry:
        """Read the value of an entry.

        Raises:
            InvalidRequestError: It is no object, a key is unknown, or a value is of another type.
        """
        if not isinstance(content, dict):
            raise InvalidRequestError.of("entry", content, "a JSON object")
        return cls(name=name, **_checked_types(content))


def _checked_types(content: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(VoiceEntry) if field.name != "name"]
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            raise InvalidRequestError(f"{shorten(key)}: unknown, known are {', '.join(known)}")
        if key == "seed":
            # True is an int to Python, but not to JSON.
            is_right, wanted = isinstance(value, int) and not isinstance(value, bool), "an integer"
        elif key == "tags":
            is_right = isinstance(value, list) and all(isinstance(tag, str) for tag in value)
            wanted = "a list of strings"
        else:
            is_right, wanted = isinstance(value, str), "a string"
        if not is_right:
            raise InvalidRequestError.of(key, value, wanted)
        values[key] = tuple(value) if key == "tags" else value
    return values


def _check_line(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidRequestError(f"{field}: got {len(text)} characters, wanted at most {limit}")
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text):
        raise InvalidRequestError.of(field, text, "one line without control characters")
