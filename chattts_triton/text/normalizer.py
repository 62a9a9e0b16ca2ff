"""The whole way of a text: lexicon, figures, characters, homophones, segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chattts_triton.config import MAX_CHARACTERS
from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.characters import fold
from chattts_triton.text.cleaner import Language, SpeakableText, clean
from chattts_triton.text.figure_reader import FigureReader
from chattts_triton.text.figures import read_figures
from chattts_triton.text.homophones import resolve
from chattts_triton.text.lexicon import Lexicon
from chattts_triton.text.number_reader import NumberReader
from chattts_triton.text.segments import Segment, dominant_language, split_segments
from chattts_triton.text.tags import split_tags

_MAX_PASSES = 4


@dataclass(frozen=True)
class Stage:
    """A text as it stands after one step of the way."""

    name: str
    text: str


@dataclass(frozen=True)
class NormalizedText:
    """What a text has become.

    Attributes:
        text: The whole of it.
        segments: The pieces that are spoken one by one, at least one.
        language: Of most of it.
        tags: The control tags in it, in order.
        stages: How it came about, the text as it was sent first.
    """

    text: SpeakableText
    segments: tuple[Segment, ...]
    language: Language
    tags: tuple[str, ...]
    stages: tuple[Stage, ...]


class TextNormalizer:
    """Turns what people write into what the model reads; any thread may call it.

    Args:
        homophones: Rare Han characters and what is read in their place.
        lexicon: A file of the user's own words, see `Lexicon`.
        max_characters: Longer texts are refused.

    Raises:
        ModelLoadError: The lexicon has a wrong line, or wetext is missing.
    """

    def __init__(
        self,
        homophones: Mapping[str, str],
        lexicon: Path | None = None,
        *,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._homophones = str.maketrans(resolve(homophones))
        self._lexicon = None if lexicon is None else Lexicon(lexicon)
        self._figures = FigureReader(NumberReader())
        self._max_characters = max_characters

    def normalize(
        self,
        text: str,
        language: Language | None = None,
        *,
        homophones: bool = True,
        field: str = "TEXT",
    ) -> NormalizedText:
        """Run a text through every step.

        Args:
            text: As it was sent.
            language: What a text without any letter is read as.
            homophones: Whether rare characters are replaced.
            field: Named in errors.

        Raises:
            InvalidRequestError: The text is too long, or has nothing to speak in it.
        """
        if len(text) > self._max_characters:
            raise InvalidRequestError(
                f"{field}: got {len(text)} characters, wanted at most {self._max_characters}"
            )
        stages = [Stage("received", text)]

        def step(name: str, result: str) -> str:
            stages.append(Stage(name, result))
            return result

        current = step("letters", _fold_outside_tags(text))
        if self._lexicon is not None:
            current = step("lexicon", self._apply_lexicon(current, self._lexicon))
        current = step("figures", read_figures(current, language, self._figures))
        cleaned = self._clean(current, language, field, text)
        step("characters", cleaned)
        if homophones:
            cleaned = SpeakableText(step("homophones", cleaned.translate(self._homophones)))
        return NormalizedText(
            text=cleaned,
            segments=split_segments(cleaned),
            language=dominant_language(cleaned, language),
            tags=tuple(piece.text for piece in split_tags(cleaned) if piece.is_tag),
            stages=tuple(stages),
        )

    def _clean(self, text: str, language: Language | None, field: str, shown: str) -> SpeakableText:
        cleaned = clean(text, language, field, shown=shown)
        # A digit or sign that is gone may have been all that kept an address apart: /www.a, 1www.a
        for _ in range(_MAX_PASSES):
            read = read_figures(cleaned, language, self._figures)
            if read == cleaned:
                break
            cleaned = clean(read, language, field, shown=shown)
        return cleaned

    def _apply_lexicon(self, text: str, lexicon: Lexicon) -> str:
        entries = lexicon.entries()
        return "".join(
            piece.text if piece.is_tag else entries.apply(piece.text) for piece in split_tags(text)
        )


def _fold_outside_tags(text: str) -> str:
    return "".join(piece.text if piece.is_tag else fold(piece.text) for piece in split_tags(text))
