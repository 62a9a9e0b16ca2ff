"""Cleaned text -> the text ids that the model is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from chattts_triton.errors import ModelLoadError
from chattts_triton.text.tags import TAGS
from chattts_triton.text.vocabulary import closed_vocabulary

TOKENIZER_FILE = "tokenizer.json"
START, SPEAKER, END = "[Stts]", "[spk_emb]", "[Ptts]"
REFINE_START, REFINE_END, REFINED_END = "[Sbreak]", "[Pbreak]", "[Ebreak]"
FIRST_PROMPT_TAG = "[break_0]"  # from its id on, tags steer the refinement and are never spoken
_NEEDED = (START, SPEAKER, END, REFINE_START, REFINE_END, REFINED_END, FIRST_PROMPT_TAG)


class PromptEncoder:
    """Builds and tokenises prompts, and reads refined text back; any thread may call it.

    Args:
        tokenizer_file: `tokenizer.json` of the `tokenizers` library.
        special_ids: Ids of the special tokens as the model knows them; those that prompts
            are made of must be among them.

    Attributes:
        vocabulary: The words that the tokenizer knows; None where it reads any.

    Raises:
        ModelLoadError: The file cannot be read, or its ids are not those of the model.
    """

    def __init__(self, tokenizer_file: Path, special_ids: Mapping[str, int]) -> None:
        self._tokenizer = load_tokenizer(tokenizer_file)
        self.vocabulary = closed_vocabulary(self._tokenizer)
        for token in _NEEDED:
            if token not in special_ids:
                raise ModelLoadError(f"special_ids: {token} is missing; export again")
        self._first_prompt_tag = special_ids[FIRST_PROMPT_TAG]
        for token in (*TAGS, *special_ids):
            got = self._tokenizer.encode(token, add_special_tokens=False).ids
            wanted = special_ids.get(token, self._tokenizer.token_to_id(token))
            if got != [wanted]:
                raise ModelLoadError(
                    f"{tokenizer_file}: {token} becomes the ids {got}, wanted [{wanted}]"
                )

    def encode(self, text: str, speed: int, sample_text: str = "") -> list[int]:
        """The ids of the whole code prompt, in one encoding as upstream does it.

        Args:
            text: What cleaning gave out, so that no reserved token of a caller is in it.
            speed: 0 (slow) to 9 (fast).
            sample_text: What is said in the voice sample whose codes follow the prompt; cleaned.
        """
        return self._encode(f"{START}{SPEAKER}{sample_text}[speed_{speed}]{text}{END}")

    def encode_refinement(self, text: str, tags: str = "") -> list[int]:
        """The ids of the prompt that asks for a refined text; `tags` are its [oral_k] and such."""
        return self._encode(f"{REFINE_START}{text}{REFINE_END}{tags}")

    def decode_refined(self, ids: npt.NDArray[np.int64]) -> str:
        """The text of refined ids (T,), the tags that steer a refinement left out as upstream."""
        kept = ids[ids < self._first_prompt_tag].tolist()
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return text.strip()

    def _encode(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return ids


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file, its truncation and padding switched off.

    Raises:
        ModelLoadError: The file cannot be read.
    """
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
