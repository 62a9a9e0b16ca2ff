"""Words that a model does not know, where its tokenizer has an id for each whole word it knows."""

from __future__ import annotations

import re

from tokenizers import Tokenizer, models

# All that cleaning leaves beside marks and tags.
_WORD = re.compile(r"[A-Za-z0-9']+|[\u4e00-\u9fff]")


class ClosedVocabulary:
    """The words of a tokenizer that spells all others; any thread may call it.

    Args:
        tokenizer: Of WordPiece, truncation and padding off.
        num_words: How many words it knows as wholes.
        num_characters: How many Chinese characters it knows.
    """

    def __init__(self, tokenizer: Tokenizer, num_words: int, num_characters: int) -> None:
        self.num_words = num_words
        self.num_characters = num_characters
        self._tokenizer = tokenizer
        self._unknown = tokenizer.model.unk_token
        self._prefix = tokenizer.model.continuing_subword_prefix

    def unknown_words(self, text: str) -> list[str]:
        """The words that are read letter by letter or not at all, each once, as they are written.

        A letter that stands alone is read as itself, and is none of them.

        Args:
            text: What cleaning gave out.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        faults = {
            start
            for token, (start, _) in zip(encoding.tokens, encoding.offsets, strict=True)
            if token == self._unknown or token.startswith(self._prefix)
        }
        if not faults:
            return []
        words = [match for match in _WORD.finditer(text) if not faults.isdisjoint(_places(match))]
        return list(dict.fromkeys(match[0] for match in words))


def closed_vocabulary(tokenizer: Tokenizer) -> ClosedVocabulary | None:
    """The closed vocabulary of a tokenizer; None where it reads any word, as the published one."""
    added = tokenizer.get_added_tokens_decoder().values()
    num_words = sum(token.single_word for token in added)
    if not num_words or not isinstance(tokenizer.model, models.WordPiece):
        return None
    num_characters = sum("\u4e00" <= token <= "\u9fff" for token in tokenizer.get_vocab())
    return ClosedVocabulary(tokenizer, num_words, num_characters)


def _places(match: re.Match[str]) -> range:
    return range(*match.span())
