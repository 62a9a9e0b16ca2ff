"""What a figure looks like: one pattern for each kind, tried in this order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chattts_triton.text.units import CURRENCIES, MONTHS, SCALES, UNITS


def _any_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


_MONTH_NAMES = [name for month in MONTHS for name in (month, month[:3])] + ["Sept"]
_MONTH = rf"(?:{_any_of(dict.fromkeys(_MONTH_NAMES))})\.?"
_DOMAIN = r"(?:com|cn|org|net|edu|gov|io|ai|co|me|dev|app|info|tv|cc|uk|jp|de|fr|hk|tw|eu|ca|au|us)"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_NAME}(?:\.{_NAME})*\.{_DOMAIN}(?![A-Za-z0-9-])"
_PATH = r"(?::\d+)?(?:/(?:[A-Za-z0-9._%+@:/?=&#~-]*[A-Za-z0-9_/])?)?"
_UNIT = "|".join(
    re.escape(unit) + "(?![A-Za-z0-9])" * (unit[-1].isascii() and unit[-1].isalnum())
    for unit in sorted(UNITS, key=len, reverse=True)
)
_SPACED_UNITS = [unit for unit in UNITS if len(unit) > 1 or not unit.isalpha()]  # not "3 m"
_LETTER_CURRENCIES = [code for code in CURRENCIES if code.isalpha()]
_SIGN_CURRENCIES = [code for code in CURRENCIES if code not in _LETTER_CURRENCIES]
_SCALE_WORDS = [scale for scale in SCALES if len(scale) > 2]
_SCALE_LETTERS = [scale for scale in SCALES if len(scale) <= 2]
_HOUR = r"(?:[01]?\d|2[0-4])"
_AM_PM = r"(?:[AaPp][Mm](?![A-Za-z])|[AaPp]\.[Mm]\.)"
_SCORE_AFTER = "获胜|战胜|击败|大胜|险胜|战平|领先|落后|不敌|力克|完胜|逆转|惜败|负于|取胜"
_START = r"(?<![A-Za-z0-9.])"  # no figure begins in the middle of another
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d+)?|(?<![A-Za-z0-9.])\.\d+"

KINDS: dict[str, str] = {
    "address": (
        rf"(?<![A-Za-z0-9._%+@/-])(?:[A-Za-z0-9._%+-]+@{_NAME}(?:\.{_NAME})+"
        rf"|https?://{_NAME}(?:\.{_NAME})*{_PATH}|www(?:\.{_NAME})+{_PATH}|{_HOST}{_PATH})"
    ),
    "phone": (
        rf"{_START}(?:\+\d(?:[ -]?\d|[ -]?\(\d{{1,4}}\)){{6,13}}"
        r"|\(\d{3,4}\) ?\d{3,4}[- ]?\d{4}"
        r"|0\d{2,3}-\d{7,8}|1[3-9]\d[ -]\d{4}[ -]\d{4}|[48]00-\d{3,4}-\d{3,4}|\d{3}-\d{3}-\d{4}"
        r"|[2-9]\d{2}-\d{3}[1-9])(?!\d|-\d)"
    ),
    "date": (
        rf"{_START}(?:(?P<date_year>\d{{4}})(?P<sep>[-/.])(?P<date_month>\d{{1,2}})(?P=sep)(?P<date_day>\d{{1,2}})"
        r"|(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<last>\d{4})"
        r"|(?P<monthly_year>\d{4})[-/](?P<year_month>0[1-9]|1[0-2]))(?![\d/-])"
    ),
    "dotted": r"(?<![A-Za-z0-9.])[vV]?\d+(?:\.\d+){2,}|(?<![A-Za-z0-9])[vV]\d+\.\d+(?![.\d])",
    "month_day": (
        r"(?<!\d)\d{1,2}月\d{1,2}[日号]?(?!\d)"
        rf"|(?<![A-Za-z]){_MONTH} (?P<day_after>\d{{1,2}})(?:st|nd|rd|th)?(?![A-Za-z\d:%]|[.,]\d)"
        rf"|(?<![A-Za-z0-9.,:])(?P<day_before>\d{{1,2}})(?:st|nd|rd|th)? {_MONTH}(?![A-Za-z])"
    ),
    "day": r"(?<![\d.])\d{1,2}日",
    "year": r"(?<![\d.])\d{4}年",
    "score": (
        rf"(?<![\d:.])\d{{1,3}}:\d{{1,3}}(?![\d:])(?= ?(?:{_SCORE_AFTER}))"
        r"|(?:(?<=比分)|(?<=比分[是为])|(?<=比[是为]))\d{1,3}:\d{1,3}(?![\d:])"
    ),
    "time": (
        rf"(?<![\d:.]){_HOUR}:[0-5]\d(?::[0-5]\d)?(?![\d:])(?: ?{_AM_PM})?"
        rf"|(?<![\d:.])(?:1[0-2]|0?[1-9]) ?{_AM_PM}"
    ),
    "ratio": r"(?<![\d:.])\d+(?:\.\d+)?:\d+(?:\.\d+)?(?!:?\d)",
    "height": r"(?<![\d.])\d{1,2}['’′] ?\d{1,2}(?:[\"”″]|'')",
    "fraction": (
        r"(?<![\d./])(?:(?P<whole>\d+) )?(?P<numerator>\d+)/(?P<denominator>\d+)(?![\d/]|\.\d)"
    ),
    "ordinal": r"第 ?\d+(?![\d.]*\.\d)|(?<![A-Za-z0-9.,])\d+(?:st|nd|rd|th)(?![A-Za-z])",
    "decade": (
        r"(?<![A-Za-z0-9.,'])(?:(?:1\d|20)\d0['’]?s|['’][1-9]0s)(?![A-Za-z])"
        r"|(?<=[Tt]he )[1-9]0['’]?s(?![A-Za-z])|(?<!\d)\d[05](?=后)"
    ),
    "label": r"(?:#|№ ?|(?<![A-Za-z])N[oO]\. ?)\d+(?![\d.]*\.\d)",
    "quantity": (
        rf"(?:(?P<currency>{_any_of(_SIGN_CURRENCIES)}|(?<![A-Za-z])(?:{_any_of(_LETTER_CURRENCIES)}))"
        rf" ?)?(?P<number>{_NUMBER})"
        rf"(?: ?(?P<scale_word>{_any_of(_SCALE_WORDS)})(?![A-Za-z])"
        rf"|(?(currency)(?:(?P<scale>{_any_of(_SCALE_LETTERS)})(?![A-Za-z])"
        r"|(?P<han_scale>[十百千万亿]+))|(?!)))?"
        rf"(?:(?P<unit>{_UNIT})| (?P<spaced_unit>{_any_of(_SPACED_UNITS)})(?![A-Za-z0-9]))?"
    ),
}
FIGURE = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS.items()))
