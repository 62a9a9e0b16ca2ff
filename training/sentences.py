"""Texts of the closed vocabulary, drawn from a seed: what the demonstration voice learns to speak.

A text is held out by a hash of its words, so that the texts of a training source and those of a
held-out source never meet, whatever their seeds.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache

from chattts_triton.text.normalizer import TextNormalizer
from training.domain import GROUPS, LETTERS, WORDS

HELD_OUT_ONE_IN = 40
SHORT_FIGURES_WORDS = 10
"""Where at most so many words are asked for, a figure comes without a sentence around it."""

_KNOWN = frozenset(WORDS)
_MAX_UNKNOWN_LETTERS = 7
_VOWELS = "aeiou"


def _of(*groups: str) -> list[str]:
    return [word for group in groups for word in GROUPS[group]]


# A rule's alternatives are equally likely; capitals name another rule.
_RULES: dict[str, list[str]] = {
    "DIGIT": [*_of("digits")[1:]],
    "TEENS": _of("teens"),
    "TENS": _of("tens"),
    "COUNT": [*_of("digits")[2:], "TEENS", "TENS", "TENS DIGIT", "TEENS", "DIGIT hundred",
              "DIGIT thousand", "DIGIT million", "TENS thousand"],
    "ORDINAL": _of("ordinals", "tens_ordinals"),
    "COLOUR": _of("colours"),
    "ADJ": _of("adjectives"),
    "QUALITY": ["ADJ", "ADJ", "COLOUR", "ADJ COLOUR", "very ADJ"],
    "THING": [*_of("things"), "apple", "egg"],
    "PLACE": ["house", "garden", "kitchen", "room", *_of("places")],
    "MASS": ["water", "milk", "coffee", "bread", "rain", "snow", "music"],
    "NATURE": ["sun", "moon", "sky", "tree", "bird"],
    "PERSON": _of("persons"),
    "ANIMAL": _of("animals"),
    "NOUN": ["THING", "THING", "THING", "THING", "PLACE", "ANIMAL", "SOUND", "TECH"],
    "SOUND": ["song", "story", "game"],
    "TECH": ["voice", "server", "model", "computer", "language", "text", "word", "number", "name",
             "demonstration", "speech", "test"],
    "PLURAL": [*_of("plurals"), *_of("plurals"), "words", "numbers"],
    "THE": ["the", "the", "the", "a", "a", "my", "your", "his", "this", "that", "every"],
    "OBJECT": ["THE NOUN", "THE NOUN", "THE QUALITY NOUN", "THE QUALITY NOUN", "COUNT PLURAL",
               "COUNT QUALITY PLURAL", "some QUALITY PLURAL", "some MASS", "my QUALITY MASS",
               "the ORDINAL THING", "THE NOUN of THE PERSON", "COUNT more PLURAL", "me", "it",
               "some PLURAL"],
    "ONE": ["he", "she", "it", "THE PERSON", "THE QUALITY PERSON", "THE ANIMAL", "THE PERSON",
            "THE COLOUR ANIMAL"],
    "MANY": ["i", "you", "we", "they", "some PLURAL", "COUNT people", "the PLURAL"],
    "WHO": ["ONE", "MANY"],
    "SUBJECT": ["THE NOUN", "THE QUALITY NOUN", "the NATURE", "THE PERSON", "the MASS", "it",
                "this", "that"],
    "NEAR": ["in", "near", "at"],
    "WHERE": ["NEAR the PLACE", "NEAR THE PLACE", "on the table", "under the THING",
              "near the THING", "with THE PERSON", "here", "there", "on the street",
              "from the PLACE", "under the sky"],
    "MONTH": _of("months"),
    "WEEKDAY": _of("weekdays"),
    "DAYPART": ["morning", "afternoon", "evening"],
    "WHEN": ["today", "yesterday", "on WEEKDAY", "in MONTH", "on MONTH ORDINAL", "at noon",
             "at midnight", "at night", "in the DAYPART", "on WEEKDAY DAYPART", "again",
             "before noon", "after midnight", "for COUNT SPANS", "every SPAN", "now",
             "for a SPAN", "about COUNT SPANS"],
    "SPAN": _of("spans"),
    "SPANS": _of("spans_many"),
    "DID": _of("past_on_things"),
    "MOVED": _of("past_of_way"),
    "RESTED": _of("past_of_rest"),
    "DO": ["BASE", "BASE", "call", "learn", "play", "ask"],
    "BASE": _of("base_on_things"),
    "REST": [*_of("base_of_rest"), "speak", "ask", "call"],
    "WAY": _of("base_of_way"),
    "HAS": _of("present_on_things"),
    "CAN": ["can", "will", "must", "can not", "will not", "must not", "can also", "will never"],
    "DONE": ["DID OBJECT", "DID OBJECT WHERE", "DID OBJECT WHEN", "MOVED to the PLACE",
             "RESTED WHERE", "RESTED WHEN", "CAN DO OBJECT", "CAN REST",
             "CAN WAY to the PLACE", "CAN REST WHEN", "never DID OBJECT", "also DID OBJECT"],
    "UNIT": ["dollars", "cents", "pounds", "euros", "pence"],
    "MEASURE": ["percent", "degrees", "kilometers", "miles", "meters", "centimeters", "feet",
                "kilograms"],
    "LENGTH": ["meters", "feet", "centimeters", "miles", "kilometers"],
    "CLAUSE": ["WHO DONE", "WHO DONE", "WHO DONE", "WHO DONE", "ONE HAS OBJECT",
               "MANY have OBJECT", "MANY like OBJECT", "MANY need OBJECT", "SUBJECT is ADJ",
               "SUBJECT was ADJ WHEN", "SUBJECT is not QUALITY", "the PLURAL are QUALITY",
               "the PLURAL were WHERE", "SUBJECT costs COUNT UNIT",
               "THE THING is COUNT LENGTH long", "there is THE NOUN WHERE",
               "there are COUNT PLURAL WHERE",
               "SUBJECT is more than COUNT MEASURE", "SUBJECT is less ADJ than THE NOUN",
               "you are ADJ", "we go to the PLACE WHEN", "my name is not your name",
               "today is WEEKDAY", "tomorrow is WEEKDAY", "SUBJECT is half full",
               "ONE CAN DO OBJECT tomorrow"],
    "MAIN": ["CLAUSE"] * 12 + ["please DO OBJECT", "please REST WHERE", "GREETING, CLAUSE",
             "thank you for OBJECT", "yes, CLAUSE", "no, CLAUSE", "WHEN, CLAUSE",
             "sorry, CLAUSE", "where is THE NOUN", "how are you WHEN",
             "bye, and thank you for OBJECT", "goodbye, CLAUSE", "if CLAUSE, CLAUSE",
             "when CLAUSE, CLAUSE", "there are PLURAL, PLURAL, and PLURAL WHERE"],
    "GREETING": ["hello", "hi", "welcome", "fine"],
    "JOIN": [", and CLAUSE", ", but CLAUSE", ", or CLAUSE", " because CLAUSE", " when CLAUSE",
             " while CLAUSE", " if CLAUSE", ", and CLAUSE", ". CLAUSE", ". please DO OBJECT"],
    "TAIL": [" WHERE", " WHEN", " with OBJECT", ", WHEN", " near THE ADJ PLACE"],
    "SHORT": ["hello", "hi", "goodbye", "bye", "thank you", "please", "sorry", "welcome", "yes",
              "no", "how are you", "hello, PERSON", "good DAYPART", "good night", "please REST",
              "yes, please", "no, thank you", "fine", "WEEKDAY", "COUNT",
              "MONTH ORDINAL", "PERSON", "NOUN", "PLURAL", "COLOUR", "listen", "THE NOUN",
              "the QUALITY NOUN", "welcome, friend", "bye, WEEKDAY"],
}  # fmt: skip
_PIECE = re.compile(r"[A-Z]+|[^A-Z]+")
_GRAMMAR: dict[str, list[list[str]]] = {
    rule: [_PIECE.findall(alternative) for alternative in alternatives]
    for rule, alternatives in _RULES.items()
}
_ARTICLE = re.compile(r"\ba (?=(?:[aeio]|hour))")

_CARRIERS = (
    *(
        "my name is {}.",
        "the word is {}.",
        "call {}.",
        "please ask {}.",
        "{} is here.",
        "hello, {}.",
    ),
    *("this is {}.", "i like {}.", "{} is a good name.", "we went to {} in may.", "where is {}"),
)
_ENGLISH = (
    "zebra apply bridge castle dragon energy forest guitar hammer island jacket kettle lemon "
    "magic nature ocean pencil quiz rocket salad tiger uncle valley winter yogurt zoo triton "
    "london paris robot python linux neural audio video tokyo boston anna peter maria oscar "
    "kevin lucy felix bella bach mozart vivid jump kiss lamp nest quick rabbit sugar truck "
    "vase wolf yacht zinc apart belong cover dance enjoy finish grow hope judge keep "
)
_OTHER_ENGLISH = _ENGLISH.split()


class SentenceSource:
    """Draws texts in the form in which the tokenizer gets them; the same seed draws the same.

    Args:
        seed: Of the draws.
        held_out: Whether only held-out texts are drawn, or only all others.
    """

    def __init__(self, seed: int, held_out: bool) -> None:
        self._random = random.Random(seed)
        self._held_out = held_out

    def sentence(self, min_words: int, max_words: int) -> str:
        """A sentence of the grammar, or several, with a length that is drawn evenly.

        Raises:
            ValueError: No text can have such a length.
        """
        self._check_length(min_words, max_words)
        return self._fitting(lambda: self._sentence(min_words, max_words))

    def figures(self, max_words: int) -> str:
        """A text that was written with figures, as the normaliser reads it.

        Raises:
            ValueError: No text can have such a length.
        """
        return self.figures_as_written(max_words)[1]

    def figures_as_written(self, max_words: int) -> tuple[str, str]:
        """What somebody would type, and what `figures` makes of it."""
        self._check_length(2, max_words)
        while True:
            written = self._written(max_words)
            text = _normalizer().normalize(written, "en").text.lower()
            if (
                len(words_of(text)) <= max_words
                and "'" not in text
                and is_held_out(text) is self._held_out
            ):
                return written, text

    def word_string(self, max_words: int) -> str:
        """Random words, all equally likely, with a comma now and then."""
        self._check_length(1, max_words)
        return self._fitting(lambda: self._word_string(max_words))

    def spelled(self) -> str:
        """One or two words outside the vocabulary, alone or in a short phrase, or a letter."""
        return self._fitting(self._spelled)

    def _check_length(self, min_words: int, max_words: int) -> None:
        least = 2 if self._held_out else 1  # a single word is never held out
        if not 1 <= min_words <= max_words or max_words < least:
            raise ValueError(
                f"words: got {min_words} to {max_words}, wanted a range up to {least} or more"
            )

    def _fitting(self, draw: Callable[[], str]) -> str:
        while True:
            text = draw()
            if is_held_out(text) is self._held_out:
                return text

    def _sentence(self, min_words: int, max_words: int) -> str:
        wanted = self._random.randint(min_words, max_words)
        while True:
            text = _expand("SHORT" if wanted < 4 else "MAIN", self._random)
            while text.count(" ") + 1 < wanted:
                missing = wanted - text.count(" ") - 1
                text += _expand("JOIN" if missing > 5 else "TAIL", self._random)
            if min_words <= text.count(" ") + 1 <= max_words:
                break
        text = _ARTICLE.sub("an ", text)
        return text if self._random.random() < 0.15 else text + "."

    def _word_string(self, max_words: int) -> str:
        draw = self._random.random
        words = self._random.choices(WORDS, k=self._random.randint(1, max_words))
        marked = [word + "," if draw() < 0.12 else word for word in words[:-1]]
        return " ".join([*marked, words[-1] + ("." if draw() < 0.5 else "")])

    def _spelled(self) -> str:
        draw = self._random.random()
        if draw < 0.12 and not self._held_out:
            return self._random.choice(LETTERS[1:])
        if draw < 0.55:
            unknown = [self._unknown() for _ in range(self._random.choice((1, 1, 2)))]
            return " ".join(unknown) + ("." if self._random.random() < 0.5 else "")
        return self._random.choice(_CARRIERS).format(self._unknown())

    def _unknown(self) -> str:
        while True:
            kind = self._random.random()
            length = self._random.randint(2, _MAX_UNKNOWN_LETTERS)
            if kind < 0.25:
                word = self._random.choice(_OTHER_ENGLISH)
            elif kind < 0.65:
                word = "".join(self._random.choices(LETTERS, k=length))
            else:
                word = _pronounceable(length, self._random)
            if word not in _KNOWN:
                return word

    def _written(self, max_words: int) -> str:
        short = max_words <= SHORT_FIGURES_WORDS or self._random.random() < 0.2
        template = self._random.choice(_BRIEF if short else _PHRASES)
        return _SLOT.sub(lambda slot: _SLOTS[slot[1]](self._random), template)


def words_of(text: str) -> list[str]:
    """The words of a text, without marks and control tags."""
    return re.findall(r"[a-z]+", re.sub(r"\[\w+\]", " ", text))


def is_held_out(text: str) -> bool:
    """Whether a text is kept from training; a word of the vocabulary or a letter alone never is."""
    words = words_of(text)
    if len(words) == 1 and (words[0] in _KNOWN or len(words[0]) == 1):
        return False
    return zlib.crc32(" ".join(words).encode()) % HELD_OUT_ONE_IN == 0


def _expand(rule: str, draws: random.Random) -> str:
    alternatives = _GRAMMAR[rule]
    chosen = alternatives[int(draws.random() * len(alternatives))]
    return "".join(_expand(piece, draws) if piece in _GRAMMAR else piece for piece in chosen)


def _pronounceable(length: int, draws: random.Random) -> str:
    consonants = [letter for letter in LETTERS if letter not in _VOWELS]
    first = draws.randrange(2)
    return "".join(
        draws.choice(_VOWELS if place % 2 == first else consonants) for place in range(length)
    )


@lru_cache(1)
def _normalizer() -> TextNormalizer:
    return TextNormalizer({})


def _clock(draws: random.Random) -> str:
    # A full hour is read with an apostrophe, which the vocabulary lacks.
    return f"{draws.randint(1, 12)}:{draws.randint(1, 59):02d}"


def _date(draws: random.Random) -> str:
    month, day = draws.choice(GROUPS["months"]).capitalize(), draws.randint(1, 31)
    return f"{month} {day}" if draws.random() < 0.4 else f"{month} {day}, {_year(draws)}"


def _year(draws: random.Random) -> str:
    return str(draws.choice((draws.randint(1900, 1999), draws.randint(2000, 2040))))


def _money(draws: random.Random) -> str:
    sign, whole = (
        draws.choice("$$$€£"),
        draws.choice((1, draws.randint(1, 99), draws.randint(1, 999))),
    )
    return f"{sign}{whole}" if draws.random() < 0.5 else f"{sign}{whole}.{draws.randint(1, 99):02d}"


def _large(draws: random.Random) -> str:
    return f"{draws.randint(1, 999)},{draws.choice((0, 0, 500, draws.randint(0, 999))):03d}"


def _measure(draws: random.Random) -> str:
    unit = draws.choice(("km", "kg", "cm", "mi", "ft", "km/h", "mph", "%", "°C", "°F", "°", "min"))
    sign = "-" if unit in ("°C", "°F") and draws.random() < 0.4 else ""
    number = draws.choice((_small, _small, _decimal, lambda _: "1"))(draws)
    # "centimeter" is no word of the vocabulary.
    if number == "1" and unit == "cm":
        unit = "km"
    return f"{sign}{number}{'' if unit[0] in '%°' else ' '}{unit}"


def _ordinal(draws: random.Random) -> str:
    number = draws.randint(1, 39)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number < 20 else ending}"


def _small(draws: random.Random) -> str:
    return str(draws.randint(2, 120))


def _decimal(draws: random.Random) -> str:
    return f"{draws.randint(0, 20)}.{draws.randint(1, 99)}"


def _phone(draws: random.Random) -> str:
    area = f"{draws.randint(200, 999)}-" if draws.random() < 0.3 else ""
    return f"{area}{draws.randint(200, 999)}-{draws.randint(0, 9999):04d}"


_SLOT = re.compile(r"\{(\w+)\}")
_SLOTS: Mapping[str, Callable[[random.Random], str]] = {
    "clock": _clock,
    "half_day": lambda draws: draws.choice((" am", " pm", "")),
    "date": _date,
    "year": _year,
    "money": _money,
    "measure": _measure,
    "ordinal": _ordinal,
    "number": lambda draws: draws.choice((_small, _small, _large, _decimal))(draws),
    "small": _small,
    "digit": lambda draws: str(draws.randint(0, 9)),
    "scale": lambda draws: draws.choice(("million", "billion", "thousand")),
    "decimal": _decimal,
    "phone": _phone,
    "fraction": lambda draws: draws.choice(("1/2", "1/4", "3/4", "1/3", "2/3")),
    "percent": lambda draws: f"{draws.randint(0, 100)}%",
    "thing": lambda draws: _expand("THING", draws),
    "things": lambda draws: _expand("PLURAL", draws),
    "colour": lambda draws: _expand("COLOUR", draws),
    "person": lambda draws: _expand("PERSON", draws),
    "weekday": lambda draws: draws.choice(GROUPS["weekdays"]).capitalize(),
    "place": lambda draws: _expand("PLACE", draws),
}
_BRIEF = (
    *("{money}", "at {clock}{half_day}", "{percent}", "{measure}", "on {date}.", "in {year}."),
    *(
        "the {ordinal}",
        "call {phone}.",
        "{decimal}",
        "{small} + {small} = {small}",
        "{small}-{small}",
    ),
    *(
        "{fraction} of it",
        "it is {measure}.",
        "it costs {money}.",
        "{small} {things}",
        "room {small}",
    ),
    *(
        "number {small}",
        "{digit}, {digit}, {digit}",
        "{small} - {digit} = {small}",
        "{digit}:{digit}",
    ),
    *("{digit} × {digit} = {small}", "No. {digit}", "{digit}.{digit} {scale}"),
)
_PHRASES = (
    "The {colour} {thing} costs {money}.",
    "The {ordinal} {thing} costs {money}, and the {ordinal} costs {money}.",
    "Please call {phone} at {clock}{half_day}.",
    "The train arrived at {clock}{half_day} on {date}.",
    "It is {percent} more than in {year}.",
    "We have {number} {colour} {things} and {small} {things}.",
    "The {place} is {measure} from here.",
    "It was {measure} in the {place} on {weekday}.",
    "My {person} needs {money} before {date}.",
    "Of the {things}, {percent} were {colour} in {year}.",
    "I have {fraction} of the {things}, and you have {fraction}.",
    "There were {small}-{small} people at the {place} on {weekday} at {clock}{half_day}.",
    "{small} + {small} = {small}, and {small} - {digit} = {small}.",
    "The number is {phone}.",
    "He was in room {small} from {clock} to {clock}.",
    "It costs ${digit}.{digit} {scale} in {year}.",
    "That is 1 mi, this is 1 km, and the {thing} is 1 kg.",
    "The {thing} is 1 ft from the {place}.",
    "The {thing} costs 1¢ more, or {small}¢ less.",
    "The {thing} is {measure} long, or {measure}.",
    "She found {number} {things} in {year}, and {number} in {year}.",
    "The game was {digit}:{digit} on {date}.",
    "On the {ordinal} of May, {year}, the {person} bought {small} {things}.",
)
