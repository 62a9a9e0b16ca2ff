"""A WordPiece tokenizer in the layout of ChatTTS's `asset/tokenizer/`, with a vocabulary of ours.

The flags of every special token, and the truncation and padding to 256 that the published
tokenizer.json carries are as published. So are ids 0..103 and 21128..21177 of the stand-in's
vocabulary; the ids between are not.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from typing import Any

NUM_BASE_TOKENS = 21128
_NUMBERED_TOKENS = {"break": 8, "laugh": 3, "oral": 10, "speed": 10}
SPECIAL_TOKENS = (
    *("[Sasr]", "[Pasr]", "[Easr]", "[Stts]", "[Ptts]", "[Etts]", "[Sbreak]", "[Pbreak]"),
    *("[Ebreak]", "[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[undefine]", "[laugh]"),
    *("[spk_emb]", "[empty_spk]", "[music]", "[pure]"),
    *(f"[{name}_{i}]" for name, count in _NUMBERED_TOKENS.items() for i in range(count)),
)

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CHINESE_PUNCTUATION = "，。、！？；：（）《》“”‘’…—"
_FIRST_HAN, _LAST_HAN = 0x4E00, 0x9FA5
_MAX_LENGTH = 256


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer knows besides the special tokens, whose ids follow.

    Attributes:
        pieces: WordPiece's vocabulary, the tokens of BERT among it; the ids count from 0.
        words: Matched as whole words only, whatever pieces they hold; their ids follow the pieces'.
    """

    pieces: tuple[str, ...]
    words: tuple[str, ...] = ()


def tokenizer_files(vocabulary: Vocabulary | None = None) -> dict[str, str]:
    """File name under `asset/tokenizer/` to its content; the stand-in's vocabulary by default."""
    known = vocabulary or _standin_vocabulary()
    added = _added_tokens(known)
    return {
        "tokenizer.json": _to_json(_tokenizer(known, added)),
        "tokenizer_config.json": _to_json(_tokenizer_config(added)),
        "special_tokens_map.json": _to_json(_special_tokens_map()),
    }


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _standin_vocabulary() -> Vocabulary:
    alphanumerics = string.digits + string.ascii_lowercase
    pieces = [f"[unused{i}]" for i in range(104)]
    pieces[0], pieces[100:] = _BERT_TOKENS[0], _BERT_TOKENS[1:]
    pieces += [
        *string.punctuation,
        *alphanumerics,
        *_CHINESE_PUNCTUATION,
        *(f"##{character}" for character in alphanumerics),
        *(chr(point) for point in range(_FIRST_HAN, _LAST_HAN + 1)),
    ]
    pieces += [f"[unused{i}]" for i in range(100, 100 + NUM_BASE_TOKENS - len(pieces))]
    return Vocabulary(tuple(pieces))


def _added_tokens(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """By id: what is matched before WordPiece cuts the rest."""
    tokens = [
        *((vocabulary.pieces.index(token), token) for token in _BERT_TOKENS),
        *enumerate((*vocabulary.words, *SPECIAL_TOKENS), start=len(vocabulary.pieces)),
    ]
    return {str(i): _flags(token, is_word=token in vocabulary.words) for i, token in tokens}


def _flags(token: str, *, is_word: bool) -> dict[str, Any]:
    # A word is looked for in the normalised text, so that its letter case does not matter.
    return _matching(token, is_word=is_word) | {"special": not is_word}


def _matching(token: str, *, is_word: bool = False) -> dict[str, Any]:
    return {
        "content": token,
        "lstrip": False,
        "normalized": is_word,
        "rstrip": False,
        "single_word": is_word,
    }


def _tokenizer(vocabulary: Vocabulary, added: dict[str, dict[str, Any]]) -> dict[str, Any]:
    cls, sep = ({"SpecialToken": {"id": f"[{name}]", "type_id": 0}} for name in ("CLS", "SEP"))
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": _MAX_LENGTH,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": _MAX_LENGTH},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [{"id": int(i), **flags} for i, flags in added.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary.pieces.index(token)], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: i for i, piece in enumerate(vocabulary.pieces)},
        },
    }


def _tokenizer_config(added: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": True,
        "cls_token": "[CLS]",
        "do_basic_tokenize": True,
        "do_lower_case": True,
        "mask_token": "[MASK]",
        "max_length": _MAX_LENGTH,
        "model_max_length": int(1e30),
        "never_split": None,
        "pad_to_multiple_of": None,
        "pad_token": "[PAD]",
        "pad_token_type_id": 0,
        "padding_side": "right",
        "sep_token": "[SEP]",
        "stride": 0,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
        "truncation_side": "right",
        "truncation_strategy": "longest_first",
        "unk_token": "[UNK]",
    }


def _special_tokens_map() -> dict[str, Any]:
    named = ("cls", "mask", "pad", "sep", "unk")
    return {
        "additional_special_tokens": [_matching(token) for token in SPECIAL_TOKENS],
        **{f"{name}_token": _matching(f"[{name.upper()}]") for name in named},
    }
