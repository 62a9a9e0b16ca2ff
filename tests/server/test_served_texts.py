"""The text cases through the running server: what `preprocess` hands on for each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from triton_calls import RunningServer, text_tensors

from chattts_triton.text.prompt import TOKENIZER_FILE
from chattts_triton.text.tags import split_tags

CASES = json.loads(
    (Path(__file__).parents[1] / "data" / "text_cases.json").read_text(encoding="utf-8")
)
RESERVED = ("[Stts]", "[Ptts]", "[spk_emb]", "[empty_spk]", "[Sbreak]", "[Pbreak]", "[Ebreak]")
HAN_DIGITS = "零〇一二三四五六七八九幺两"


def segments(server: RunningServer, text: str, case: dict[str, Any]) -> list[str]:
    options = {"LANG": case["lang"]} if "lang" in case else {}
    outputs = server.call("preprocess", text_tensors(text, **options))
    return [segment.decode() for segment in outputs["SEGMENT_TEXT"][0] if segment]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_text_case_through_the_server(server: RunningServer, case: dict[str, Any]):
    if "error" in case:
        refusal = server.refused(case["in"])
        assert refusal.status == case["error"]
        assert refusal.text.startswith("in ensemble 'chattts', preprocess: TEXT: got ")
        return
    parts = segments(server, case["in"], case)
    text = "".join(parts)

    assert text
    if "out" in case:
        assert text.rstrip("。.") == case["out"].rstrip("。.")
    for piece in case.get("contains", []):
        assert piece.lower() in text.lower()
    if "must_not_match" in case:
        assert not re.search(case["must_not_match"], text)
    if "same_as" in case:
        assert parts == segments(server, case["same_as"], case)
    if "segments" in case:
        assert len(parts) == case["segments"]
    if "tags" in case:
        assert [piece.text for piece in split_tags(text) if piece.is_tag] == case["tags"]
    if "han_digits_after" in case:
        word, count = case["han_digits_after"]
        digits = re.match(f"[{HAN_DIGITS}]*", text[text.index(word) + len(word) :]).group()
        assert len(digits) == count
    ids = server.call("preprocess", text_tensors(case["in"]))["TEXT_IDS"][0].tolist()
    special = server.manifest.special_ids
    wanted = {token: len(parts) for token in ("[Stts]", "[Ptts]", "[spk_emb]")}
    assert {token: ids.count(special[token]) for token in RESERVED} == {
        token: wanted.get(token, 0) for token in RESERVED
    }


def tokens(server: RunningServer, text: str) -> list[str]:
    """The tokens of a text's prompt, pieces of a word put together again."""
    directory = server.manifest.member_directory(server.repository, "preprocess")
    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    ids = server.call("preprocess", text_tensors(text))["TEXT_IDS"][0].tolist()
    return " ".join(map(tokenizer.id_to_token, ids)).replace(" ##", "").split()[3:-1]


def test_b_04_a_messy_line_is_read_in_its_order(server: RunningServer):
    text = "123,1,2,3。how are you ！ I'm fine , thank you 。啊！啊？abb一样，246一样&（*\""

    spoken = tokens(server, text)

    words = [token for token in spoken if token not in ",.，。"]
    assert " ".join(words) == (
        "one hundred and twenty three one two three how are you i ' m fine thank you 啊 啊 "
        "abb 一 样 两 百 四 十 六 一 样"
    )
    assert server.speak_one(text, SEED=1, MAX_NEW_TOKENS=1).is_sound()


def test_b_14_what_follows_an_exclamation_or_a_question_is_spoken(server: RunningServer):
    text = "想喝纯正咖啡？您可以来阿宕咖啡。这里的每一杯咖啡！都是艺术品。"

    spoken = tokens(server, text)

    assert [token for token in spoken if token != "。"] == re.findall(r"[^？。！]", text)
    assert spoken.count("。") == 4


def test_b_17_english_words_in_chinese_are_in_the_prompt(server: RunningServer):
    spoken = tokens(server, "总结一下，AI Agent是大模型功能的扩展")

    assert spoken == [*"总结一下，", "ai", "agent", *"是大模型功能的扩展"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[LAUGH]hi", ["[laugh]", "hi"]),
        ("[cough]hi", ["cough", "hi"]),
        ("[laugh_0]测试", ["[laugh_0]", "测", "试"]),
    ],
)
def test_b_29_a_tag_is_known_or_read_and_never_unknown(
    server: RunningServer, text: str, wanted: list[str]
):
    assert tokens(server, text) == wanted


def test_every_key_of_the_cases_is_known():
    known = {
        *("id", "note", "in", "out", "contains", "must_not_match", "same_as", "error"),
        *("speakable", "segments", "tags", "han_digits_after", "no_reserved_ids"),
        *("speaker_slots", "lang", "homophones"),
    }
    assert {key for case in CASES for key in case} <= known
