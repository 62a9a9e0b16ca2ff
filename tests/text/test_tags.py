import pytest

from chattts_triton.text.tags import TAGS, Piece, split_tags


@pytest.mark.parametrize("tag", TAGS)
def test_each_tag_is_found_in_any_letter_case(tag: str) -> None:
    wanted = [Piece("a", is_tag=False), Piece(tag, is_tag=True), Piece("b", is_tag=False)]

    assert split_tags(f"a{tag}b") == wanted
    assert split_tags(f"a{tag.upper()}b") == wanted


@pytest.mark.parametrize(
    "text",
    [
        "[Stts]",
        "[spk_emb]",
        "[empty_spk]",
        "[Ebreak]",
        "[UNK]",
        "[break_8]",
        "[laugh_3]",
        "[oral_10]",
        "[speed_10]",
        "[speed_５]",
        "[ laugh ]",
        "[laugh",
        "laugh]",
        "[]",
        "",
    ],
)
def test_b_20_other_brackets_stay_in_the_plain_text(text: str) -> None:
    assert split_tags(text) == ([Piece(text, is_tag=False)] if text else [])


def test_tags_side_by_side_leave_no_empty_pieces() -> None:
    assert split_tags("[laugh][lbreak]") == [Piece("[laugh]", True), Piece("[lbreak]", True)]
