"""Speaks one figure: each kind of `figure_patterns.KINDS` has its own reading in each language."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from chattts_triton.text.figure import NUM_COUNTED, Figure
from chattts_triton.text.number_reader import NumberReader
from chattts_triton.text.units import (
    ADDRESS_SIGNS,
    CENTS,
    CURRENCIES,
    DECADES,
    MONTHS,
    SCALES,
    TWO_AS_NAME,
    TWO_OF,
    UNITS,
    Unit,
)

MIN_CODE_DIGITS = 4  # 验证码1234, PIN 1234
MIN_DIGIT_RUN = 7  # of so many digits without unit, point or separator, each is read by itself
MAX_SMALL_GLUED_DIGITS = 2  # MP3, H1N1; A380 and GPT-1024 are read by their digits

_YEAR = re.compile(r"(?:1[5-9]|20)(?!00)\d\d|2000")
_RECENT_YEAR = re.compile(r"19[5-9]\d|20[0-4]\d")
_DENOMINATORS = frozenset((*range(2, 11), 12, 16, 32, 64, 100, 1000))


class FigureReader:
    """Reads figures aloud, on paper; any thread may call it."""

    def __init__(self, numbers: NumberReader) -> None:
        self._numbers = numbers
        self._readings: dict[str, Callable[[Figure], str | None]] = {
            "address": self._address,
            "phone": self._phone,
            "date": self._date,
            "dotted": self._dotted,
            "month_day": self._month_day,
            "day": lambda figure: f"{self._cardinal(figure, figure.text[:-1])}日",
            "year": self._year,
            "score": self._ratio,
            "time": self._time,
            "ratio": self._ratio,
            "height": self._height,
            "fraction": self._fraction,
            "ordinal": self._ordinal,
            "decade": self._decade,
            "label": self._label,
            "quantity": self._quantity,
        }

    def read(self, figure: Figure) -> str:
        """The spoken form: no digit is left in it, and none was lost."""
        spoken = self._readings[figure.kind](figure)
        return self._plain(figure) if spoken is None else spoken

    def _plain(self, figure: Figure) -> str:
        """Every number in the figure by itself, all else as it stands."""
        return re.sub(
            r"\d+",
            lambda match: _apart(figure, self._numbers.cardinal(match[0], figure.language)),
            figure.text,
        )

    def _cardinal(self, figure: Figure, digits: str) -> str:
        return self._numbers.cardinal(digits, figure.language)

    def _address(self, figure: Figure) -> str:
        """example.com/a1: the words as they are, the signs by their names; no https://."""
        words = []
        bare = re.sub(r"^https?://", "", figure.text).rstrip("/")
        for part in re.findall(r"[A-Za-z]+|\d+|.", bare):
            if part.isdigit():
                words.append(_apart(figure, self._short_code(figure, part)))
            elif part in ADDRESS_SIGNS:
                words.append(_apart(figure, _pick(figure, ADDRESS_SIGNS[part])))
            else:
                words.append(part)
        return "".join(words)

    def _short_code(self, figure: Figure, digits: str) -> str:
        """A number within a name: a short one as a number, a longer one by its digits."""
        if len(digits) <= MAX_SMALL_GLUED_DIGITS:
            return self._cardinal(figure, digits)
        return self._numbers.digits(digits, figure.language)

    def _phone(self, figure: Figure) -> str:
        groups = [self._numbers.digits(part, figure.language) for part in _numbers_in(figure.text)]
        plus = _pick(figure, ("加", "plus ")) if figure.text.startswith("+") else ""
        return plus + _pick(figure, ("，", ", ")).join(groups)

    def _date(self, figure: Figure) -> str | None:
        parts = figure.parts
        if "year_month" in parts:
            year, month, day = parts["monthly_year"], parts["year_month"], None
        elif "last" in parts:  # the month first, as in the United States, where both are possible
            year, month, day = parts["last"], parts["first"], parts["second"]
            if int(month) > len(MONTHS):
                month, day = day, month
        else:
            year, month, day = parts["date_year"], parts["date_month"], parts["date_day"]
        if not _is_date(month, day):
            return self._dotted(figure) if parts.get("sep") == "." else None
        return self._written_date(figure, year, month.lstrip("0"), day and day.lstrip("0"))

    def _written_date(self, figure: Figure, year: str, month: str, day: str | None) -> str:
        spoken_year = self._numbers.year(year, figure.language)
        if figure.language == "zh":
            spoken_day = f"{self._cardinal(figure, day)}日" if day else ""
            return f"{spoken_year}年{self._cardinal(figure, month)}月{spoken_day}"
        name = MONTHS[int(month) - 1]
        if day is None:
            return f"{name} {spoken_year}"
        return f"{name} {self._numbers.ordinal(day, figure.language)}, {spoken_year}"

    def _month_day(self, figure: Figure) -> str | None:
        day = figure.parts.get("day_after") or figure.parts.get("day_before")
        if day is None or figure.language == "zh":
            return None
        if not _is_date("1", day):
            return None
        spoken = self._numbers.ordinal(day.lstrip("0"), figure.language)
        return re.sub(r"\d{1,2}(?:st|nd|rd|th)?", spoken, figure.text)

    def _year(self, figure: Figure) -> str:
        digits = _numbers_in(figure.text)[0]
        is_count = digits.startswith("0") or (digits.endswith("000") and digits != "2000")
        reader = self._numbers.cardinal if is_count else self._numbers.year
        return f"{reader(digits, 'zh')}年"

    def _dotted(self, figure: Figure) -> str:
        """1.2.3: a version, an address of a computer."""
        letter = figure.text[0] if figure.text[0].isalpha() else ""
        spoken = [self._short_code(figure, part) for part in _numbers_in(figure.text)]
        point = _pick(figure, ("点", " point "))
        return letter + _pick(figure, ("", " ")) * bool(letter) + point.join(spoken)

    def _time(self, figure: Figure) -> str | None:
        numbers = _numbers_in(figure.text)
        letter = re.search("[AaPp]", figure.text)
        if figure.language == "zh":
            spoken = self._chinese_time(numbers)
            noon = {"a": "上午", "p": "下午"}[letter[0].lower()] if letter else ""
            return noon + spoken
        if len(numbers) == 1:
            clock: str | None = self._cardinal(figure, numbers[0])
        elif len(numbers) == 2:
            clock = self._numbers.read(":".join(numbers), "en")
        else:
            clock = None
        if clock is None:
            clock = " ".join(self._cardinal(figure, number) for number in numbers)
        return clock + (f" {letter[0].upper()} M" if letter else "")

    def _chinese_time(self, numbers: list[str]) -> str:
        """两点, 两点零五分, 十二点三十分四十五秒."""
        spoken = ""
        for index, (number, name) in enumerate(zip(numbers, "点分秒", strict=False)):
            is_zero = int(number) == 0
            if index and is_zero and len(numbers) == index + 1:
                continue
            spoken += "两" if number.lstrip("0") == "2" and not index else self._two(number)
            spoken += name
        return spoken

    def _two(self, digits: str) -> str:
        """A number of two digits: 05 is 零五, 00 is 零."""
        if int(digits) == 0:
            return "零"
        return self._numbers.cardinal(digits, "zh")

    def _ratio(self, figure: Figure) -> str:
        left, right = figure.text.split(":")
        spoken = [self._numbers.number(part, figure.language) for part in (left, right)]
        return _pick(figure, ("比", " to ")).join(spoken)

    def _height(self, figure: Figure) -> str:
        feet, inches = (self._cardinal(figure, part) for part in _numbers_in(figure.text))
        return _pick(figure, (f"{feet}英尺{inches}英寸", f"{feet} foot {inches}"))

    def _fraction(self, figure: Figure) -> str | None:
        numerator, denominator = figure.parts["numerator"], figure.parts["denominator"]
        whole = figure.parts.get("whole")
        top, bottom = (self._cardinal(figure, part) for part in (numerator, denominator))
        is_fraction = int(numerator) < int(denominator)
        if figure.language == "en" and int(numerator) > 1:
            is_fraction = is_fraction and int(denominator) in _DENOMINATORS
        if not is_fraction:  # 24/7, 120/80, 9/11
            head = f"{self._cardinal(figure, whole)} " if whole else ""
            return head + top + _pick(figure, ("斜杠", " slash ")) + bottom
        if figure.language == "zh":
            head = f"{self._cardinal(figure, whole)}又" if whole else ""
            return f"{head}{bottom}分之{top}"
        head = f"{self._cardinal(figure, whole)} and " if whole else ""
        named = self._numbers.read(f"{int(numerator)}/{int(denominator)}", "en")
        return head + (named or f"{top} over {bottom}")

    def _ordinal(self, figure: Figure) -> str:
        digits = _numbers_in(figure.text)[0]
        if figure.text.startswith("第"):
            return self._numbers.ordinal(digits, "zh")
        return self._numbers.ordinal(digits, figure.language)

    def _decade(self, figure: Figure) -> str:
        digits = _numbers_in(figure.text)[0]
        if figure.behind.startswith("后") and "s" not in figure.text:
            return self._numbers.digits(digits, "zh")
        if figure.language == "zh":
            if len(digits) == 4:
                return f"{self._numbers.digits(digits, 'zh')}年代"
            return f"{self._cardinal(figure, digits)}秒"
        if digits == "2000":
            return "two thousands"
        century = f"{self._cardinal(figure, digits[:2])} " if len(digits) == 4 else ""
        return century + DECADES[digits[-2:]]

    def _label(self, figure: Figure) -> str:
        number = self._cardinal(figure, _numbers_in(figure.text)[0])
        return _pick(figure, (f"{number}号", f"number {number}"))

    def _quantity(self, figure: Figure) -> str:
        parts = figure.parts
        scale = parts.get("scale") or parts.get("scale_word") or ""
        currency = parts.get("currency", "")
        if currency and not scale and "han_scale" not in parts:
            return self._money(figure, currency)
        spoken = self._amount(figure, is_bare=not (scale or currency or figure.unit))
        spoken += parts.get("han_scale", "")
        if scale:
            spoken += _pick(figure, SCALES[scale], " ")
        if figure.unit:
            spoken = _in_words(figure, UNITS[figure.unit], spoken)
        if currency:
            spoken = _in_words(figure, CURRENCIES[currency], spoken)
        return spoken

    def _money(self, figure: Figure, currency: str) -> str:
        """$1.50 is one dollar and fifty cents; ¥1.50 is 一点五元; zeros behind are not spoken."""
        whole, _, fraction = figure.number.partition(".")
        if not fraction.strip("0"):
            amount = replace(figure, number=whole or "0")
            return _in_words(amount, CURRENCIES[currency], self._cardinal(figure, whole or "0"))
        if figure.language == "en" and currency in CENTS and len(fraction) == 2:
            cents = f"{self._cardinal(figure, fraction.lstrip('0'))} {CENTS[currency]}"
            if not whole.strip("0"):
                return cents
            amount = replace(figure, number=whole)
            spoken = _in_words(amount, CURRENCIES[currency], self._cardinal(figure, whole))
            return f"{spoken} and {cents}"
        number = figure.number if figure.language == "en" else figure.number.rstrip("0")
        spoken = self._numbers.number(number, figure.language)
        return _in_words(figure, CURRENCIES[currency], spoken)

    def _amount(self, figure: Figure, *, is_bare: bool) -> str:
        """The number of a quantity; without unit or currency it may be a code or a year as well."""
        digits, language = figure.number, figure.language
        if "." in digits:
            return self._numbers.number(digits, language)
        if is_bare and "," not in figure.text:
            if self._is_code(figure):
                return self._numbers.digits(digits, language)
            if self._is_year(figure):
                return self._numbers.year(digits, language)
        if language == "en":
            return self._cardinal(figure, digits)
        if figure.unit:
            # The unit as wetext knows it, so that 2千克 is 两千克.
            _, _, after = UNITS[figure.unit].zh.partition("{}")
            return self._numbers.counted(digits, after[:NUM_COUNTED])
        if digits == "2" and figure.following[:1] and figure.following[0] in TWO_OF:
            return "两"
        if digits == "2" and figure.following.startswith(TWO_AS_NAME):
            return "二"
        return self._numbers.counted(digits, figure.following)

    def _is_code(self, figure: Figure) -> bool:
        if figure.is_glued:
            is_year = _YEAR.fullmatch(figure.number) is not None
            return len(figure.number) > MAX_SMALL_GLUED_DIGITS and not is_year
        shortest = MIN_CODE_DIGITS if figure.is_called_code else MIN_DIGIT_RUN
        return len(figure.number) >= shortest and not figure.is_counted

    def _is_year(self, figure: Figure) -> bool:
        if figure.kind == "year":
            return True
        if figure.language == "en":
            return _YEAR.fullmatch(figure.number) is not None and not figure.is_counted
        return (
            _RECENT_YEAR.fullmatch(figure.number) is not None
            and figure.number != "2000"
            and not figure.is_part_of_range
            and not figure.is_counted
        )


def _pick(figure: Figure, words: tuple[str, str], before_english: str = "") -> str:
    """The Chinese or the English one of two words."""
    return words[0] if figure.language == "zh" else before_english + words[1]


def _apart(figure: Figure, spoken: str) -> str:
    return spoken if figure.language == "zh" else f" {spoken} "


def _in_words(figure: Figure, unit: Unit, spoken: str) -> str:
    if figure.language == "zh":
        return unit.zh.format(spoken)
    is_one = figure.number == "1" and spoken == "one"
    return (unit.en_one if is_one else unit.en_many).format(spoken)


def _numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _is_date(month: str, day: str | None) -> bool:
    return 1 <= int(month) <= len(MONTHS) and (day is None or 1 <= int(day) <= 31)
