"""Cleaned text -> the text ids that the model is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from chattts_triton.errors import ModelLoadError
from chattts_triton.text.cleaner import SpeakableText
from chattts_triton.text.tags import TAGS

START, SPEAKER, END = "[Stts]", "[spk_emb]", "[Ptts]"


class PromptEncoder:
    """Builds and tokenises `[Stts][spk_emb][speed_N]<text>[Ptts]`; any thread may call it.

    Args:
        tokenizer_file: `tokenizer.json` of the `tokenizers` library.
        special_ids: Ids of the special tokens as the model knows them; START, SPEAKER and END
            must be among them.

    Raises:
        ModelLoadError: The file cannot be read, or its ids are not those of the model.
    """

    def __init__(self, tokenizer_file: Path, special_ids: Mapping[str, int]) -> None:
        self._tokenizer = _load_tokenizer(tokenizer_file)
        for token in (START, SPEAKER, END):
            if token not in special_ids:
                raise ModelLoadError(f"special_ids: {token} is missing; export again")
        for token in (*TAGS, *special_ids):
            got = self._tokenizer.encode(token, add_special_tokens=False).ids
            wanted = special_ids.get(token, self._tokenizer.token_to_id(token))
            if got != [wanted]:
                raise ModelLoadError(
                    f"{tokenizer_file}: {token} becomes the ids {got}, wanted [{wanted}]"
                )

    def encode(self, text: SpeakableText, speed: int) -> list[int]:
        """The ids of the whole prompt, in one encoding as upstream does it.

        Args:
            text: What `clean` gave out, so that no reserved token of a caller is in it.
            speed: 0 (slow) to 9 (fast).
        """
        prompt = f"{START}{SPEAKER}[speed_{speed}]{text}{END}"
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return ids


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        raise ModelLoadError(f"{path}: not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
