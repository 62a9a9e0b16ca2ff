"""Numbers as words: the library wetext, where it is right, behind a lock, a check and a fallback.

Spoken forms hold Han, Latin letters, spaces and apostrophes only.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any

from chattts_triton.errors import ModelLoadError
from chattts_triton.text.cleaner import Language

MAX_CARDINAL_DIGITS = {"zh": 13, "en": 15}  # beyond, wetext reads wrongly or not at all
_CACHE_SIZE = 8192

_DIGITS: dict[Language, tuple[str, ...]] = {
    "zh": tuple("零一二三四五六七八九"),
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
}
_POINT: dict[Language, str] = {"zh": "点", "en": " point "}
_SPOKEN: dict[Language, re.Pattern[str]] = {
    "zh": re.compile(r"[\u4e00-\u9fffA-Za-z]+"),
    "en": re.compile(r"[A-Za-z' -]+"),
}


class NumberReader:
    """Reads numbers, dates and times in Chinese and in English; any thread may call it.

    Raises:
        ModelLoadError: wetext is not installed, or does not work here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._normalizers = _load_wetext()
        self._ask = lru_cache(_CACHE_SIZE)(self._ask_wetext)
        if self._ask("2个", "zh") != "两个" or self._ask("2", "en") != "two":
            raise ModelLoadError(
                "wetext: does not read 2; its grammars are missing or of another kind"
            )

    def read(self, text: str, language: Language) -> str | None:
        """What wetext makes of a text, if that is something that can be spoken as it stands."""
        return self._ask(text, language)

    def digits(self, text: str, language: Language) -> str:
        """Every digit by itself; what is none is left out."""
        words = [_DIGITS[language][int(char)] for char in text if char in "0123456789"]
        return ("" if language == "zh" else " ").join(words)

    def cardinal(self, digits: str, language: Language) -> str:
        """A whole number without separators; one too long, or that begins with 0, by its digits."""
        if digits in ("0", "2") or not _is_cardinal(digits, language):
            return self.digits(digits, language)
        if language == "zh":
            # With a unit behind it wetext takes no number for that of a hotline or a year.
            spoken = self._ask(f"{digits}元", language)
            return spoken.removesuffix("元") if spoken else self.digits(digits, language)
        spoken = self._ask(f"{int(digits):,}", language)
        if spoken is None:
            return self.digits(digits, language)
        return f"one {spoken}" if spoken.startswith("thousand") else spoken

    def counted(self, digits: str, following: str) -> str:
        """A whole number in Chinese, as the characters behind it have it: 2个 is 两个."""
        if not _is_cardinal(digits, "zh"):
            return self.digits(digits, "zh")
        spoken = self._ask(f"{digits}{following}", "zh") if following else None
        if spoken and spoken.endswith(following):
            return spoken.removesuffix(following)
        return self._ask(digits, "zh") or self.digits(digits, "zh")

    def number(self, text: str, language: Language) -> str:
        """A whole number or a decimal, with a "." and without thousands separators."""
        whole, point, fraction = text.partition(".")
        spoken = self.cardinal(whole or "0", language)
        if point:
            spoken += f"{_POINT[language]}{self.digits(fraction, language)}"
        return spoken

    def year(self, digits: str, language: Language) -> str:
        """A year of four digits: 二零二四, twenty twenty four."""
        spoken = self._ask(digits, language) if language == "en" else None
        return spoken or self.digits(digits, language)

    def ordinal(self, digits: str, language: Language) -> str:
        """第二, second."""
        if language == "zh":
            return f"第{self.cardinal(digits, language)}"
        suffix = {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th")
        if digits[-2:-1] == "1":
            suffix = "th"
        return self._ask(f"{digits}{suffix}", language) or self.cardinal(digits, language)

    def _ask_wetext(self, text: str, language: Language) -> str | None:
        with self._lock:
            try:
                spoken: str = self._normalizers[language].normalize(text)
            except (AssertionError, IndexError, KeyError, RuntimeError, ValueError):
                return None  # its parser fails on what its grammar has no path for
        spoken = spoken.replace("幺", "一")
        return spoken if _SPOKEN[language].fullmatch(spoken) else None


def _is_cardinal(digits: str, language: Language) -> bool:
    has_leading_zero = len(digits) > 1 and digits.startswith("0")
    return not has_leading_zero and len(digits) <= MAX_CARDINAL_DIGITS[language]


def _load_wetext() -> dict[str, Any]:
    """The grammars take half a second and 37 MB to load, so this happens once a process."""
    try:
        from wetext import Normalizer
    except ImportError as error:
        raise ModelLoadError(f"wetext: cannot be imported: {error}") from error
    return {language: Normalizer(lang=language, operator="tn") for language in ("zh", "en")}
