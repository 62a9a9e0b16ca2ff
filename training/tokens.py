"""Texts of the domain as token ids, in the prompts that ChatTTS reads."""

from __future__ import annotations

import string

from tokenizers import Tokenizer

from chattts_triton.export.tokenizer_standin import Vocabulary, tokenizer_files
from training.domain import WORDS

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHINESE_PUNCTUATION = "，。、"
VOCABULARY = Vocabulary(
    pieces=(
        *_BERT_TOKENS,
        *string.punctuation,
        *_CHINESE_PUNCTUATION,
        *string.ascii_lowercase,
        *(f"##{letter}" for letter in string.ascii_lowercase),
    ),
    words=tuple(word for word in WORDS if len(word) > 1),
)

SPEECH_PROMPT_START = 3  # ids before the text: [Stts], [spk_emb] and [speed_N]


class Tokens:
    """The tokenizer of a vocabulary, and the prompts of both generations."""

    def __init__(self, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = Tokenizer.from_str(tokenizer_files(vocabulary)["tokenizer.json"])
        self._tokenizer.no_padding()
        self.speaker = self.id_of("[spk_emb]")
        self.text_end = self.id_of("[Ebreak]")

    @property
    def count(self) -> int:
        """Rows of the text embedding."""
        return int(self._tokenizer.get_vocab_size())

    def id_of(self, token: str) -> int:
        """The id of one token that exists."""
        return int(self._tokenizer.token_to_id(token))

    def all(self) -> dict[str, int]:
        """Every token and its id."""
        return dict(self._tokenizer.get_vocab())

    def ids(self, text: str) -> list[int]:
        """Ids of a text as it is, control tags included."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def speech_prompt(self, text: str, speed: int) -> list[int]:
        """What precedes the codes."""
        return self.ids(f"[Stts][spk_emb][speed_{speed}]{text}[Ptts]")

    def refinement_prompt(self, text: str, tags: str) -> list[int]:
        """What precedes the refined text; `tags` such as `[oral_2][laugh_0][break_4]`."""
        return self.ids(f"[Sbreak]{text}[Pbreak]{tags}")
