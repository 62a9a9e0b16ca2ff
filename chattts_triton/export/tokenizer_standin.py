"""A WordPiece tokenizer in the layout of ChatTTS's `asset/tokenizer/`, with a vocabulary of ours.

Ids 0..103 and 21128..21177, the flags of every special token, and the truncation and padding to
256 that the published tokenizer.json carries are as published; the ids between are not.
"""

from __future__ import annotations

import json
import string
from typing import Any

NUM_BASE_TOKENS = 21128
_NUMBERED_TOKENS = {"break": 8, "laugh": 3, "oral": 10, "speed": 10}
SPECIAL_TOKENS = (
    *("[Sasr]", "[Pasr]", "[Easr]", "[Stts]", "[Ptts]", "[Etts]", "[Sbreak]", "[Pbreak]"),
    *("[Ebreak]", "[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[undefine]", "[laugh]"),
    *("[spk_emb]", "[empty_spk]", "[music]", "[pure]"),
    *(f"[{name}_{i}]" for name, count in _NUMBERED_TOKENS.items() for i in range(count)),
)

_BERT_TOKENS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
_CHINESE_PUNCTUATION = "，。、！？；：（）《》“”‘’…—"
_FIRST_HAN, _LAST_HAN = 0x4E00, 0x9FA5
_MAX_LENGTH = 256


def tokenizer_files() -> dict[str, str]:
    """File name under `asset/tokenizer/` to its content."""
    return {
        "tokenizer.json": _to_json(_tokenizer()),
        "tokenizer_config.json": _to_json(_tokenizer_config()),
        "special_tokens_map.json": _to_json(_special_tokens_map()),
    }


def _to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _vocabulary() -> dict[str, int]:
    alphanumerics = string.digits + string.ascii_lowercase
    tokens = [
        *(_BERT_TOKENS.get(i, f"[unused{i}]") for i in range(104)),
        *string.punctuation,
        *alphanumerics,
        *_CHINESE_PUNCTUATION,
        *(f"##{character}" for character in alphanumerics),
        *(chr(point) for point in range(_FIRST_HAN, _LAST_HAN + 1)),
    ]
    tokens += [f"[unused{i}]" for i in range(100, 100 + NUM_BASE_TOKENS - len(tokens))]
    return {token: i for i, token in enumerate(tokens)}


def _added_tokens() -> dict[int, str]:
    return _BERT_TOKENS | {NUM_BASE_TOKENS + i: token for i, token in enumerate(SPECIAL_TOKENS)}


def _flags(token: str) -> dict[str, Any]:
    return {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }


def _tokenizer() -> dict[str, Any]:
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
        "added_tokens": [
            {"id": i, **_flags(token), "special": True} for i, token in _added_tokens().items()
        ],
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
                token: {"id": token, "ids": [i], "tokens": [token]}
                for i, token in _BERT_TOKENS.items()
                if token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": _vocabulary(),
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "added_tokens_decoder": {
            str(i): {**_flags(token), "special": True} for i, token in _added_tokens().items()
        },
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
        "additional_special_tokens": [_flags(token) for token in SPECIAL_TOKENS],
        **{f"{name}_token": _flags(f"[{name.upper()}]") for name in named},
    }
