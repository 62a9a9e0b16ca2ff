"""A small tokenizer and speaker statistics in the layout that `export` writes."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

HIDDEN_SIZE = 48
HAN = "你好世界今天下雨重点我喜欢三体和流浪地球数组等于测试温价格零号柜箱门区"
SPECIAL_TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[Sasr]",
    "[Pasr]",
    "[Easr]",
    "[Stts]",
    "[Ptts]",
    "[Etts]",
    "[Sbreak]",
    "[Pbreak]",
    "[Ebreak]",
    "[uv_break]",
    "[v_break]",
    "[lbreak]",
    "[llbreak]",
    "[undefine]",
    "[laugh]",
    "[spk_emb]",
    "[empty_spk]",
    "[music]",
    "[pure]",
    *(f"[break_{level}]" for level in range(8)),
    *(f"[laugh_{level}]" for level in range(3)),
    *(f"[oral_{level}]" for level in range(10)),
    *(f"[speed_{level}]" for level in range(10)),
]


def build_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer of BERT's kind, with truncation and padding on, as published."""
    alphanumerics = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [*SPECIAL_TOKENS, *",.，。、'[]_", *alphanumerics, *HAN]
    words += [f"##{char}" for char in alphanumerics]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    return tokenizer


def write_preprocess_files(directory: Path) -> None:
    build_tokenizer().save(str(directory / "tokenizer.json"))
    homophones = json.dumps({"雎": "居"}, ensure_ascii=False)
    (directory / "homophones.json").write_text(homophones, encoding="utf-8")
    generator = np.random.default_rng(0)
    mean = generator.normal(0, 1, HIDDEN_SIZE)
    deviation = generator.uniform(0.5, 2, HIDDEN_SIZE)
    np.save(directory / "speaker_statistics.npy", np.stack([mean, deviation]).astype(np.float16))
