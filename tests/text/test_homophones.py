from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.upstream import homophones_map
from chattts_triton.text.homophones import load_homophones, resolve
from chattts_triton.text.normalizer import TextNormalizer


def test_a_chain_is_followed_to_its_end() -> None:
    assert resolve({"甲": "乙", "乙": "丙"}) == {"甲": "丙", "乙": "丙"}


def test_a_circle_stays_as_it_is_and_what_leads_into_it_ends_there() -> None:
    assert resolve({"甲": "乙", "乙": "丙", "丙": "乙"}) == {"甲": "乙", "乙": "乙", "丙": "丙"}
    assert resolve({"甲": "甲"}) == {"甲": "甲"}


@given(st.dictionaries(st.sampled_from("甲乙丙丁戊"), st.sampled_from("甲乙丙丁戊己")))
def test_replacing_twice_is_replacing_once(homophones: dict[str, str]) -> None:
    resolved = resolve(homophones)

    assert set(resolved) == set(homophones)
    for char in resolved.values():
        assert resolved.get(char, char) == char


def test_the_map_of_the_package_is_resolved() -> None:
    resolved = resolve(homophones_map())

    assert resolved["雎"] == "居"
    assert not set(resolved.values()) & {char for char, to in resolved.items() if char != to}


def test_b_23_rare_characters_are_replaced_and_the_mapped_marks_stay(
    normalizer: TextNormalizer,
) -> None:
    text = "关关雎鸠，窈窕淑女，君子好逑！"

    assert normalizer.normalize(text).text == "关关居鸠，咬挑淑女，君子好求。"
    assert normalizer.normalize(text, homophones=False).text == "关关雎鸠，窈窕淑女，君子好逑。"


def test_b_24_the_er_of_a_word_is_kept(normalizer: TextNormalizer) -> None:
    assert "叶儿" in normalizer.normalize("叶儿粑").text


def test_a_written_map_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "homophones.json"
    path.write_text('{"雎": "居"}', encoding="utf-8")

    assert load_homophones(path) == {"雎": "居"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[]", "not an object"),
        (b'{"a": "b"}', "wanted one Han character for one"),
        ('{"雎": "居居"}'.encode(), "wanted one Han character for one"),
        ('{"雎": 5}'.encode(), "wanted one Han character for one"),
    ],
)
def test_a_damaged_map_is_a_load_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "homophones.json"
    path.write_bytes(content)

    with pytest.raises(ModelLoadError, match=message):
        load_homophones(path)


def test_a_missing_map_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"homophones\.json: cannot be read"):
        load_homophones(tmp_path / "homophones.json")
