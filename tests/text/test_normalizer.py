import re

import pytest

from chattts_triton.config import MAX_CHARACTERS
from chattts_triton.errors import InvalidRequestError
from chattts_triton.text.characters import fold
from chattts_triton.text.normalizer import TextNormalizer


def test_each_stage_shows_the_text_after_it(normalizer: TextNormalizer) -> None:
    result = normalizer.normalize("[LAUGH]雎Ｃ区3个！")

    assert [(stage.name, stage.text) for stage in result.stages] == [
        ("received", "[LAUGH]雎Ｃ区3个！"),
        ("letters", "[laugh]雎C区3个！"),
        ("figures", "[laugh]雎C区三个！"),
        ("characters", "[laugh]雎C区三个。"),
        ("homophones", "[laugh]居C区三个。"),
    ]
    assert result.text == result.stages[-1].text
    assert result.tags == ("[laugh]",)
    assert result.language == "zh"
    assert [segment.text for segment in result.segments] == ["[laugh]居C区三个。"]


def test_b_47_a_plain_text_is_spoken_as_it_is_given(normalizer: TextNormalizer) -> None:
    text = "作为连续五年全球新能源销量冠军。"

    assert normalizer.normalize(text).text == text
    assert normalizer.normalize("the weather is fine").text == "the weather is fine"


def test_b_04_a_messy_line_is_read_in_its_order(normalizer: TextNormalizer) -> None:
    text = "123,1,2,3。how are you ！ I'm fine , thank you 。啊！啊？abb一样，246一样&（*\""

    (segment,) = normalizer.normalize(text).segments

    assert segment.text == (
        "one hundred and twenty three,one,two,three。how are you. I'm fine, thank you。啊。啊。"
        "abb一样，两百四十六一样"
    )


def test_b_17_english_words_within_chinese_stay_words(normalizer: TextNormalizer) -> None:
    (segment,) = normalizer.normalize("总结一下，AI Agent是大模型功能的扩展").segments

    words = re.findall("[a-z]+", segment.text.lower())

    assert words == ["ai", "agent"]


def test_b_14_b_39_every_sentence_is_in_a_segment(normalizer: TextNormalizer) -> None:
    text = "想喝纯正咖啡？您可以来阿宕咖啡。这里的每一杯咖啡！都是艺术品。" * 10

    result = normalizer.normalize(text, homophones=False)

    assert len(result.segments) > 1
    spoken = "".join(segment.text for segment in result.segments)
    assert [char for char in spoken if char.isalnum()] == [char for char in text if char.isalnum()]


@pytest.mark.parametrize("text", ["", " ", "\n", "!!!", "...", "”", "—", "😀", "[laugh]", "%", "$"])
def test_b_11_b_12_text_with_nothing_to_speak_is_refused(
    normalizer: TextNormalizer, text: str
) -> None:
    with pytest.raises(InvalidRequestError, match=r"^TEXT\[3\]: got .*no speakable text"):
        normalizer.normalize(text, field="TEXT[3]")

    assert normalizer.normalize("好").text == "好"


def test_the_error_quotes_what_was_sent(normalizer: TextNormalizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"got '（ ）', which"):
        normalizer.normalize("（ ）")


def test_a_text_of_too_many_characters_is_refused(normalizer: TextNormalizer) -> None:
    assert normalizer.normalize("好" * MAX_CHARACTERS).text == "好" * MAX_CHARACTERS
    with pytest.raises(InvalidRequestError, match=r"^TEXT: got 5001 characters, wanted at most"):
        normalizer.normalize("好" * (MAX_CHARACTERS + 1))
    with pytest.raises(InvalidRequestError, match="got 3 characters, wanted at most 2"):
        TextNormalizer({}, max_characters=2).normalize("好好好")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("Ｃ区１", "C区1"), ("cafe\u0301", "cafe"), ("①½", "1 1/2"), ("1½", "1 1/2"), ("10²", "10²"),
     ("１／２", "1／2"), ("，！", "，！"), ("二〇", "二零"), ("⑴", "(1)"), ("㈠", "㈠")],
)  # fmt: skip
def test_letters_and_digits_are_folded_and_marks_are_not(text: str, wanted: str) -> None:
    assert fold(text) == wanted
