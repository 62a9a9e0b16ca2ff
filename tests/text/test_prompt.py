import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_fixtures import HAN, SPECIAL_TOKENS
from tokenizers import Tokenizer

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export.tokenizer_standin import tokenizer_files
from chattts_triton.export.upstream import import_upstream
from chattts_triton.text.cleaner import clean
from chattts_triton.text.prompt import PromptEncoder
from chattts_triton.text.tags import TAGS

PROMPT_TOKENS = ["[Stts]", "[spk_emb]", "[Ptts]", "[Sbreak]", "[Pbreak]", "[Ebreak]", "[break_0]"]


@pytest.fixture(scope="module")
def encoder(preprocess_directory: Path, special_ids: dict[str, int]) -> PromptEncoder:
    return PromptEncoder(preprocess_directory / "tokenizer.json", special_ids)


@pytest.fixture(scope="module")
def unknown_id(special_ids: dict[str, int]) -> int:
    return special_ids["[UNK]"]


def test_the_prompt_is_one_encoding_of_upstreams_string(
    encoder: PromptEncoder, tokenizer: Tokenizer
) -> None:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = clean("你好[uv_break]hi, I'm OK")

    ids = encoder.encode(text, 5)

    prompt = f"[Stts][spk_emb][speed_5]{text}[Ptts]"
    assert ids == tokenizer.encode(prompt, add_special_tokens=False).ids
    wanted = [
        "[Stts]",
        "[spk_emb]",
        "[speed_5]",
        "你",
        "好",
        "[uv_break]",
        "h",
        "##i",
        ",",
        "i",
        "'",
    ]
    assert ids[: len(wanted)] == [tokenizer.token_to_id(token) for token in wanted]


def test_truncation_and_padding_of_the_file_are_not_heeded(encoder: PromptEncoder) -> None:
    assert len(encoder.encode(clean("好"), 5)) == 5
    assert len(encoder.encode(clean("好" * 500), 5)) == 504


@pytest.mark.parametrize("speed", range(10))
def test_b_50_each_speed_is_one_special_id(
    encoder: PromptEncoder, special_ids: dict[str, int], speed: int
) -> None:
    ids = encoder.encode(clean("你好"), speed)

    assert ids[2] == special_ids[f"[speed_{speed}]"]
    assert sum(i in {special_ids[f"[speed_{level}]"] for level in range(10)} for i in ids) == 1


@pytest.mark.parametrize("tag", TAGS)
def test_b_28_each_tag_is_one_id_and_none_of_its_letters_is_read(
    encoder: PromptEncoder, special_ids: dict[str, int], tag: str
) -> None:
    with_tag = encoder.encode(clean(f"你{tag.upper()}好"), 5)

    without_tag = encoder.encode(clean("你好"), 5)
    assert with_tag == [*without_tag[:4], special_ids[tag], *without_tag[4:]]


def test_b_28_several_tags_keep_their_order(
    encoder: PromptEncoder, special_ids: dict[str, int]
) -> None:
    text = "What is [uv_break]your favorite english food?[laugh][lbreak]"

    ids = encoder.encode(clean(text), 5)

    special = set(special_ids.values())
    wanted = ["[Stts]", "[spk_emb]", "[speed_5]", "[uv_break]", "[laugh]", "[lbreak]", "[Ptts]"]
    assert [i for i in ids if i in special] == [special_ids[token] for token in wanted]


@pytest.mark.parametrize("token", sorted(set(SPECIAL_TOKENS) - set(TAGS)))
def test_b_20_b_21_a_reserved_token_in_a_text_never_becomes_its_id(
    encoder: PromptEncoder, special_ids: dict[str, int], token: str
) -> None:
    ids = encoder.encode(clean(f"你好{token}世界{token.upper()}{token.lower()}"), 5)

    prompt = [special_ids[name] for name in ("[Stts]", "[spk_emb]", "[speed_5]", "[Ptts]")]
    assert [i for i in ids if i in set(special_ids.values())] == prompt


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(["[", "]", "[[", *SPECIAL_TOKENS, "spk_emb", "你", "a"])).map("".join)
)
def test_b_21_a_prompt_holds_one_speaker_slot_whatever_the_text(
    encoder: PromptEncoder, special_ids: dict[str, int], text: str
) -> None:
    ids = encoder.encode(clean(text + "好"), 5)

    assert ids.count(special_ids["[spk_emb]"]) == 1
    assert ids[1] == special_ids["[spk_emb]"]
    for token in set(SPECIAL_TOKENS) - set(TAGS) - {"[Stts]", "[Ptts]", "[spk_emb]"}:
        assert special_ids[token] not in ids


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=HAN + "abcXYZ019 ,.，。!?'-[]éＣ😀", max_size=300))
def test_b_29_han_and_latin_text_gives_no_unknown_id(
    encoder: PromptEncoder, unknown_id: int, text: str
) -> None:
    try:
        cleaned = clean(text)
    except InvalidRequestError:
        assert not re.search(f"[{HAN}a-zA-Z0-9éＣ]", text)
        return

    assert unknown_id not in encoder.encode(cleaned, 5)


def test_b_29_a_very_long_word_gives_no_unknown_id(encoder: PromptEncoder, unknown_id: int) -> None:
    assert unknown_id not in encoder.encode(clean("a" * 1000), 5)


def test_a_missing_tokenizer_is_a_load_error(tmp_path: Path, special_ids: dict[str, int]) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: cannot be read"):
        PromptEncoder(tmp_path / "tokenizer.json", special_ids)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not a tokenizer"), (b"{}", "not a tokenizer"), (b"\xff", "cannot be read")],
)
def test_a_damaged_tokenizer_is_a_load_error(
    tmp_path: Path, special_ids: dict[str, int], content: bytes, message: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)

    with pytest.raises(ModelLoadError, match=message):
        PromptEncoder(path, special_ids)


def test_ids_that_are_not_those_of_the_manifest_are_a_load_error(
    preprocess_directory: Path, special_ids: dict[str, int]
) -> None:
    path = preprocess_directory / "tokenizer.json"

    with pytest.raises(ModelLoadError, match=r"\[spk_emb\] becomes the ids"):
        PromptEncoder(path, special_ids | {"[spk_emb]": 7777})
    with pytest.raises(ModelLoadError, match=r"\[no_such\] becomes the ids"):
        PromptEncoder(path, special_ids | {"[no_such]": 5})


@pytest.mark.parametrize("token", PROMPT_TOKENS)
def test_a_manifest_without_a_token_of_the_prompt_is_a_load_error(
    preprocess_directory: Path, special_ids: dict[str, int], token: str
) -> None:
    rest = {name: i for name, i in special_ids.items() if name != token}

    with pytest.raises(ModelLoadError, match=f"special_ids: {re.escape(token)} is missing"):
        PromptEncoder(preprocess_directory / "tokenizer.json", rest)


def test_a_tokenizer_without_a_control_tag_is_a_load_error(
    tmp_path: Path, tokenizer: Tokenizer, special_ids: dict[str, int]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str().replace("[llbreak]", "[renamed]"), encoding="utf-8")
    rest = {name: i for name, i in special_ids.items() if name != "[llbreak]"}

    with pytest.raises(ModelLoadError, match=r"\[llbreak\] becomes the ids"):
        PromptEncoder(path, rest)


UPSTREAM_TEXTS = [
    "你好，世界。",
    "第一个例子是，The book that I bought yesterday is interesting！",
    "I'm fine, don't worry! Café [LAUGH] ok[uv_break]",
    "价格是1.5元（打折后）[Ebreak]…",
    "好" * 400,
    "a" * 150,
]


@pytest.fixture(scope="module")
def standin_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    for name, content in tokenizer_files().items():
        (directory / name).write_text(content, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def upstream_tokenizer(standin_tokenizer: Path) -> Any:
    import_upstream()
    from ChatTTS.model.tokenizer import Tokenizer as UpstreamTokenizer

    return UpstreamTokenizer(str(standin_tokenizer))


@pytest.mark.parametrize("text", UPSTREAM_TEXTS)
def test_ids_are_those_of_upstreams_tokenizer(
    standin_tokenizer: Path, upstream_tokenizer: Any, text: str
) -> None:
    file = Tokenizer.from_file(str(standin_tokenizer / "tokenizer.json"))
    special = {token: file.token_to_id(token) for token in PROMPT_TOKENS}
    encoder = PromptEncoder(standin_tokenizer / "tokenizer.json", special)
    cleaned = clean(text)

    input_ids, _, _ = upstream_tokenizer.encode([f"[Stts][spk_emb][speed_3]{cleaned}[Ptts]"], 4)

    assert encoder.encode(cleaned, 3) == input_ids[0, :, 0].tolist()
