"""The text cases through the running server: what `preprocess` hands on for each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from triton_calls import RunningServer, text_tensors

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


def test_every_key_of_the_cases_is_known():
    known = {
        *("id", "note", "in", "out", "contains", "must_not_match", "same_as", "error"),
        *("speakable", "segments", "tags", "han_digits_after", "no_reserved_ids"),
        *("speaker_slots", "lang", "homophones"),
    }
    assert {key for case in CASES for key in case} <= known
