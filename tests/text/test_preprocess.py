import json
import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_fixtures import HIDDEN_SIZE, write_preprocess_files
from tokenizers import Tokenizer

from chattts_triton.constants import default_max_new_codes
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.sampling_params import RANGES, SamplingParams
from chattts_triton.serving.edge import NUMPY_DTYPES, Tensors
from chattts_triton.serving.options import MAX_FRESH_SEED, TRITON_PARAMETERS
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.tensors import MAX_BATCH_SIZE, OPTIONS, PREPROCESS
from chattts_triton.voices.prompt_codes import encode_prompt_codes
from chattts_triton.voices.speaker import SpeakerStatistics, encode_speaker, speaker_embedding

NO_PARAMETERS: dict[str, object] = {}
OPTION_DTYPES = {spec.name: spec.dtype for spec in PREPROCESS.inputs}


def tensors(**values: Any) -> Tensors:
    """Input tensors of one column each: `TEXT="a"` one row, `TEXT=["a", "b"]` two."""
    made: Tensors = {}
    for name, value in values.items():
        rows = value if isinstance(value, list) else [value]
        rows = [row.encode() if isinstance(row, str) else row for row in rows]
        made[name] = np.array(rows, NUMPY_DTYPES[OPTION_DTYPES[name]]).reshape(-1, 1)
    return made


def refusal(
    preprocess: PreprocessModel, inputs: Tensors, parameters: Mapping[str, object] = NO_PARAMETERS
) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        preprocess.run(inputs, dict(parameters))
    return str(caught.value)


def assert_same(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert np.array_equal(array, right[name]), name


def test_outputs_have_the_declared_names_dtypes_and_shapes(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(tensors(TEXT=["你好", "hello world", "好"]), NO_PARAMETERS)

    specs = [spec for spec in PREPROCESS.outputs if spec.name != "RECORD"]  # not of a text
    assert set(outputs) == {spec.name for spec in specs}
    for spec in specs:
        array = outputs[spec.name]
        assert array.dtype == NUMPY_DTYPES[spec.dtype]
        assert array.shape[0] == 3
        assert array.ndim == 1 + len(spec.shape)
        assert array.size > 0
    assert outputs["SPEAKER_EMBEDDING"].shape == (3, HIDDEN_SIZE)


def test_left_out_options_are_the_defaults_sent(preprocess: PreprocessModel) -> None:
    sent = tensors(
        TEXT="你好",
        SEED=7,
        VOICE="",
        SPEED=5,
        TEMPERATURE=SamplingParams.temperature,
        TOP_P=SamplingParams.top_p,
        TOP_K=SamplingParams.top_k,
        REPETITION_PENALTY=SamplingParams.repetition_penalty,
        MAX_NEW_TOKENS=default_max_new_codes(2),
        REFINE=False,
        LANG="",
        TRIM=False,
    )

    outputs = preprocess.run(tensors(TEXT="你好", SEED=7), NO_PARAMETERS)

    assert set(sent) == {spec.name for spec in PREPROCESS.inputs}
    assert_same(outputs, preprocess.run(sent, NO_PARAMETERS))


def test_b_82_three_rows_are_the_three_texts_in_order(
    preprocess: PreprocessModel, special_ids: dict[str, int]
) -> None:
    texts, seeds = ["你好，世界。", "hi", "你好[laugh]"], [1, 2, 3]

    batch = preprocess.run(tensors(TEXT=texts, SEED=seeds), NO_PARAMETERS)

    for row, (text, seed) in enumerate(zip(texts, seeds, strict=True)):
        alone = preprocess.run(tensors(TEXT=text, SEED=seed), NO_PARAMETERS)
        length = int(batch["NUM_TEXT_IDS"][row, 0])
        assert batch["TEXT_IDS"][row, :length].tolist() == alone["TEXT_IDS"][0].tolist()
        assert not batch["TEXT_IDS"][row, length:].any()
        assert np.array_equal(batch["SPEAKER_EMBEDDING"][row], alone["SPEAKER_EMBEDDING"][0])
        assert batch["MAX_NEW_CODES"][row] == alone["MAX_NEW_CODES"][0]
    assert batch["SEED_USED"].ravel().tolist() == seeds
    assert special_ids["[laugh]"] in batch["TEXT_IDS"][2]


def test_each_row_has_its_own_options(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(
        tensors(
            TEXT=["好", "好"],
            SPEED=[0, 9],
            TEMPERATURE=[0.1, 0.2],
            TOP_P=[0.5, 1.0],
            TOP_K=[1, 626],
            REPETITION_PENALTY=[1.0, 2.0],
            MAX_NEW_TOKENS=[1, 2048],
        ),
        NO_PARAMETERS,
    )

    assert outputs["TEMPERATURE"].ravel().tolist() == pytest.approx([0.1, 0.2])
    assert outputs["TOP_P"].ravel().tolist() == [0.5, 1.0]
    assert outputs["TOP_K"].ravel().tolist() == [1, 626]
    assert outputs["REPETITION_PENALTY"].ravel().tolist() == [1.0, 2.0]
    assert outputs["MAX_NEW_CODES"].ravel().tolist() == [1, 2048]
    assert outputs["TEXT_IDS"][0, 2] != outputs["TEXT_IDS"][1, 2]


@pytest.mark.parametrize(
    ("text", "num_characters"),
    [("好", 1), ("你好！！", 3), ("《你》[uv_break]好", 3), ("a" * 20, 20), ("好" * 100, 100)],
)
def test_the_cap_grows_with_the_cleaned_text(
    preprocess: PreprocessModel, text: str, num_characters: int
) -> None:
    outputs = preprocess.run(tensors(TEXT=text), NO_PARAMETERS)

    assert outputs["MAX_NEW_CODES"].item() == default_max_new_codes(num_characters)


def test_b_66_bytes_are_read_as_utf_8(preprocess: PreprocessModel, tokenizer: Tokenizer) -> None:
    outputs = preprocess.run(tensors(TEXT="😀你好".encode()), NO_PARAMETERS)

    tokens = [tokenizer.id_to_token(i) for i in outputs["TEXT_IDS"][0]]
    assert tokens == ["[Stts]", "[spk_emb]", "[speed_5]", "你", "好", "[Ptts]"]


def test_b_66_invalid_utf_8_is_refused_by_name_and_row(preprocess: PreprocessModel) -> None:
    assert refusal(preprocess, tensors(TEXT=b"\xff\xfe\x41")).startswith("TEXT: got bytes that")
    message = refusal(preprocess, tensors(TEXT=[b"a", b"\xff"]))
    assert message.startswith("TEXT[1]: got bytes that are not UTF-8")


@pytest.mark.parametrize("text", ["", " ", "\n", "!!!", "😀"])
def test_b_12_an_empty_text_is_refused_and_the_next_request_served(
    preprocess: PreprocessModel, text: str
) -> None:
    assert "no speakable text" in refusal(preprocess, tensors(TEXT=text))
    assert refusal(preprocess, tensors(TEXT=["a", "b", text])).startswith("TEXT[2]: ")
    assert preprocess.run(tensors(TEXT="好"), NO_PARAMETERS)["NUM_TEXT_IDS"].item() == 5


def test_a_text_longer_than_the_limit_is_refused(preprocess: PreprocessModel) -> None:
    message = refusal(preprocess, tensors(TEXT="好" * 5001))

    assert message == "TEXT: got 5001 characters, wanted at most 5000"
    assert refusal(preprocess, tensors(TEXT=["好", "好" * 5001])).startswith("TEXT[1]: ")


def test_no_segment_of_the_longest_text_is_too_long_for_a_prompt(
    preprocess: PreprocessModel,
) -> None:
    for text in ("好" * 5000, "hello " * 833, "9" * 5000):
        outputs = preprocess.run(tensors(TEXT=text), NO_PARAMETERS)
        assert outputs["NUM_TEXT_IDS"].max() <= 1024


# Seeds


@pytest.mark.parametrize("seed", [0, 1, 2147483648, 4294967296, 9223372036854775807])
def test_b_51_a_seed_is_used_and_returned(preprocess: PreprocessModel, seed: int) -> None:
    outputs = preprocess.run(tensors(TEXT="好", SEED=seed), NO_PARAMETERS)

    assert outputs["SEED_USED"].item() == seed
    assert_same(outputs, preprocess.run(tensors(TEXT="好", SEED=seed), NO_PARAMETERS))
    assert_same(outputs, preprocess.run(tensors(TEXT="好"), {"seed": seed}))


@pytest.mark.parametrize("seed", [None, -1])
def test_b_51_without_a_seed_each_row_draws_its_own_and_it_reproduces_the_row(
    preprocess: PreprocessModel, seed: int | None
) -> None:
    inputs = tensors(TEXT=["好"] * 8) | ({} if seed is None else tensors(SEED=[seed] * 8))

    drawn = preprocess.run(inputs, NO_PARAMETERS)

    seeds = drawn["SEED_USED"].ravel().tolist()
    assert len(set(seeds)) == 8
    assert all(0 <= each <= MAX_FRESH_SEED for each in seeds)
    assert_same(drawn, preprocess.run(tensors(TEXT=["好"] * 8, SEED=seeds), NO_PARAMETERS))


@pytest.mark.parametrize("seed", [-2, -(2**63)])
def test_b_51_other_seeds_are_refused(preprocess: PreprocessModel, seed: int) -> None:
    wanted = f"got {seed}, wanted 0 to 9223372036854775807, or -1 for a fresh one"

    assert refusal(preprocess, tensors(TEXT="好", SEED=seed)) == f"SEED: {wanted}"
    assert refusal(preprocess, tensors(TEXT="好"), {"seed": seed}) == f"SEED: {wanted}"
    batch = tensors(TEXT=["好", "好"], SEED=[1, seed])
    assert refusal(preprocess, batch) == f"SEED[1]: {wanted}"


@pytest.mark.parametrize(
    "seed",
    ["42", 1.5, 7.0, True, None, [1], {}, 2**63, 2**64, pytest.param(10**5000, id="huge")],
)
def test_b_51_a_seed_of_another_type_is_refused(preprocess: PreprocessModel, seed: object) -> None:
    assert refusal(preprocess, tensors(TEXT="好"), {"seed": seed}).startswith("seed: got ")


def test_b_33_a_request_leaves_the_random_state_of_the_process_alone(
    preprocess: PreprocessModel,
) -> None:
    def state() -> tuple[object, ...]:
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    before = state()

    preprocess.run(tensors(TEXT=["好", "你"], SEED=[7, -1]), NO_PARAMETERS)

    assert state() == before


def test_b_33_requests_of_other_threads_change_nothing(preprocess: PreprocessModel) -> None:
    inputs = [tensors(TEXT=f"你好 number {i}", SEED=i, TOP_K=i + 1) for i in range(16)]
    alone = [preprocess.run(each, NO_PARAMETERS) for each in inputs]
    start = threading.Barrier(8)

    def run(_: int) -> list[Tensors]:
        start.wait(timeout=30)
        return [preprocess.run(each, NO_PARAMETERS) for each in inputs]

    with ThreadPoolExecutor(8) as pool:
        for outputs in pool.map(run, range(8)):
            for left, right in zip(outputs, alone, strict=True):
                assert_same(left, right)


# Voices


def test_b_31_three_seeds_are_three_voices_of_length_one(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(tensors(TEXT=["好"] * 3, SEED=[1, 2, 3]), NO_PARAMETERS)

    embeddings = outputs["SPEAKER_EMBEDDING"]
    assert len({row.tobytes() for row in embeddings}) == 3
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx(1, abs=2e-3)


def test_a_speaker_string_is_the_voice_whatever_the_seed(
    preprocess: PreprocessModel, preprocess_directory: Path
) -> None:
    vector = SpeakerStatistics(preprocess_directory / "speaker_statistics.npy").draw(99)
    voice = encode_speaker(vector)

    batch = preprocess.run(
        tensors(TEXT=["好", "好"], SEED=[1, 99], VOICE=[voice, ""]), NO_PARAMETERS
    )
    by_parameter = preprocess.run(tensors(TEXT="好", SEED=5), {"voice": voice})

    wanted = speaker_embedding(vector)
    assert np.array_equal(batch["SPEAKER_EMBEDDING"], np.stack([wanted, wanted]))
    assert np.array_equal(by_parameter["SPEAKER_EMBEDDING"][0], wanted)


@pytest.mark.parametrize("voice", ["abc", "alice", " ", "一" * 9, encode_speaker(np.ones(768))])
def test_b_48_a_malformed_voice_is_refused_by_name_and_row(
    preprocess: PreprocessModel, voice: str
) -> None:
    assert refusal(preprocess, tensors(TEXT="好", VOICE=voice)).startswith("VOICE: got ")
    assert refusal(preprocess, tensors(TEXT="好"), {"voice": voice}).startswith("VOICE: got ")
    batch = tensors(TEXT=["好", "好"], VOICE=["", voice])
    assert refusal(preprocess, batch).startswith("VOICE[1]: got ")


def test_b_48_a_voice_of_no_utf_8_is_refused(preprocess: PreprocessModel) -> None:
    message = refusal(preprocess, tensors(TEXT="好", VOICE=b"\xff"))

    assert message == r"VOICE: got b'\xff', wanted UTF-8"


# Options


@pytest.mark.parametrize("speed", [10, -1, 123456789])
def test_b_50_a_speed_out_of_range_is_refused(preprocess: PreprocessModel, speed: int) -> None:
    assert refusal(preprocess, tensors(TEXT="好", SPEED=speed)) == (
        f"SPEED: got {speed}, wanted 0 to 9"
    )
    assert refusal(preprocess, tensors(TEXT="好"), {"speed": speed}).startswith("SPEED: ")


@pytest.mark.parametrize("name", [name for name in RANGES if name != "SEED"])
def test_a_sampling_option_out_of_range_is_refused_by_name_and_row(
    preprocess: PreprocessModel, name: str
) -> None:
    low, high = RANGES[name]
    for value in (low - 1, high + 1):
        assert refusal(preprocess, tensors(TEXT="好", **{name: value})).startswith(f"{name}: got ")
        batch = tensors(TEXT=["好", "好"], **{name: [high, value]})
        assert refusal(preprocess, batch).startswith(f"{name}[1]: got ")
        parameters = {name.lower(): value}
        assert refusal(preprocess, tensors(TEXT="好"), parameters).startswith(f"{name}: got ")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_temperature_that_is_no_number_is_refused(
    preprocess: PreprocessModel, value: float
) -> None:
    message = refusal(preprocess, tensors(TEXT="好", TEMPERATURE=value))

    assert message == f"TEMPERATURE: got {value!r}, wanted 1e-06 to 10.0"


@pytest.mark.parametrize("language", ["fr", "ZH", "zh ", "\0", b"\xff"])
def test_another_language_is_refused(preprocess: PreprocessModel, language: str | bytes) -> None:
    assert refusal(preprocess, tensors(TEXT="好", LANG=language)).startswith("LANG: got ")
    batch = tensors(TEXT=["好", "好"], LANG=["zh", language])
    assert refusal(preprocess, batch).startswith("LANG[1]: got ")


def test_lang_decides_how_a_text_without_letters_is_read(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(tensors(TEXT=["9!"] * 3, LANG=["zh", "en", ""]), NO_PARAMETERS)

    texts = [segments[0].decode() for segments in outputs["SEGMENT_TEXT"]]
    assert texts == ["九。", "nine.", "九。"]


def test_only_rows_that_ask_for_it_get_prompts_of_a_refinement(
    preprocess: PreprocessModel, special_ids: dict[str, int]
) -> None:
    outputs = preprocess.run(tensors(TEXT=["好", "好"], REFINE=[False, True]), NO_PARAMETERS)

    assert outputs["NUM_REFINE_IDS"].tolist() == [[0], [3]]
    start, end = special_ids["[Sbreak]"], special_ids["[Pbreak]"]
    assert outputs["REFINE_IDS"][1][[0, 2]].tolist() == [start, end]
    by_parameter = preprocess.run(tensors(TEXT="好"), {"refine": True})
    assert by_parameter["NUM_REFINE_IDS"].tolist() == [[3]]


def test_segments_have_seeds_of_their_own_and_the_first_has_the_texts(
    preprocess: PreprocessModel,
) -> None:
    text = "今天天气很好我们去公园走走看看花听听鸟叫然后回家喝茶。" * 4

    outputs = preprocess.run(tensors(TEXT=[text, "好"], SEED=[7, 7]), NO_PARAMETERS)

    seeds = outputs["SEED"]
    num_segments = int((outputs["NUM_TEXT_IDS"][0] > 0).sum())
    assert num_segments > 1
    assert seeds[0, 0] == seeds[1, 0] == 7
    assert len(set(seeds[0].tolist())) == num_segments
    assert (seeds[0] >= 0).all()
    assert outputs["NUM_TEXT_IDS"][1, 1:].tolist() == [0] * (num_segments - 1)
    assert outputs["PAUSE_SAMPLES"][0, num_segments - 1] == 0
    assert (outputs["PAUSE_SAMPLES"][0, : num_segments - 1] > 0).all()


def write_voice(directory: Path, text: str) -> Path:
    sample = encode_prompt_codes(np.arange(40, dtype=np.int32).reshape(10, 4))
    entry = {
        "seed": 3,
        "description": "A sample.",
        "language": "any",
        "tags": [],
        "prompt": sample,
        "text": text,
    }
    path = directory / "voices.json"
    path.write_text(json.dumps({"voices": {"sampled": entry}}), encoding="utf-8")
    return path


def test_a_voice_with_a_sample_brings_its_codes_and_its_transcript(
    preprocess_directory: Path, special_ids: dict[str, int], tmp_path: Path
) -> None:
    write_voice(tmp_path, "你好！")
    model = PreprocessModel(preprocess_directory, special_ids, tmp_path)

    outputs = model.run(tensors(TEXT=["好", "好"], VOICE=["sampled", ""]), NO_PARAMETERS)

    assert outputs["NUM_PROMPT_CODES"].tolist() == [[10], [0]]
    assert outputs["PROMPT_CODES"][0].tolist() == np.arange(40).reshape(10, 4).tolist()
    assert [row[0].decode() for row in outputs["PROMPT_TEXT"]] == ["你好。", ""]
    with_sample, without = outputs["NUM_TEXT_IDS"][:, 0]
    assert with_sample == without + 3


def test_a_transcript_that_does_not_fit_into_the_prompt_is_refused(
    preprocess_directory: Path, special_ids: dict[str, int], tmp_path: Path
) -> None:
    write_voice(tmp_path, "好" * 1000)
    model = PreprocessModel(preprocess_directory, special_ids, tmp_path)

    message = refusal(model, tensors(TEXT="好" * 30, VOICE="sampled"))

    assert message == (
        "VOICE: got a transcript that makes a prompt of 1034 ids, wanted at most 1024"
    )


def test_parameters_do_what_the_tensors_do_for_every_row(preprocess: PreprocessModel) -> None:
    values: dict[str, Any] = {
        "SEED": 5,
        "SPEED": 3,
        "TEMPERATURE": 0.5,
        "TOP_P": 1.0,
        "TOP_K": 7,
        "REPETITION_PENALTY": 2.0,
        "MAX_NEW_TOKENS": 12,
        "REFINE": False,
        "LANG": "en",
        "TRIM": True,
        "VOICE": encode_speaker(np.arange(HIDDEN_SIZE)),
    }
    texts = tensors(TEXT=["9!", "你好"])

    by_parameters = preprocess.run(texts, {name.lower(): v for name, v in values.items()})

    assert set(values) == {spec.name for spec in OPTIONS}
    by_tensors = texts | tensors(**{name: [value] * 2 for name, value in values.items()})
    assert_same(by_parameters, preprocess.run(by_tensors, NO_PARAMETERS))


def test_a_tensor_wins_over_a_parameter(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(tensors(TEXT="好", SEED=1, TOP_K=2), {"seed": 9, "top_k": 9})

    assert outputs["SEED_USED"].item() == 1
    assert outputs["TOP_K"].item() == 2


def test_a_whole_number_is_a_temperature(preprocess: PreprocessModel) -> None:
    assert preprocess.run(tensors(TEXT="好"), {"temperature": 1})["TEMPERATURE"].item() == 1.0


@pytest.mark.parametrize("name", ["sed", "SEED", "text", "", "max_new_codes", "x" * 10_000])
def test_an_unknown_parameter_is_refused_with_the_known_ones(
    preprocess: PreprocessModel, name: str
) -> None:
    message = refusal(preprocess, tensors(TEXT="好"), {name: 1})

    assert message.startswith(f"'{name[:50]}")
    assert message.endswith(
        ": unknown parameter, known are lang, max_new_tokens, queue_priority, refine, "
        "repetition_penalty, seed, speed, temperature, top_k, top_p, trim, voice"
    )
    assert len(message) < 250


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_a_place_in_the_queue_changes_nothing_about_a_text(
    preprocess: PreprocessModel, priority: int
) -> None:
    outputs = preprocess.run(tensors(TEXT="好", SEED=1), {"queue_priority": priority})

    assert_same(outputs, preprocess.run(tensors(TEXT="好", SEED=1), NO_PARAMETERS))


@pytest.mark.parametrize("priority", [-1, 3, True, 1.0, "1", None, [1]])
def test_a_place_in_the_queue_that_does_not_exist_is_refused(
    preprocess: PreprocessModel, priority: object
) -> None:
    message = refusal(preprocess, tensors(TEXT="好"), {"queue_priority": priority})

    assert message.startswith(f"queue_priority: got {priority!r}, wanted 0 to 2")


@pytest.mark.parametrize("name", [*sorted(TRITON_PARAMETERS), "triton_enable_empty_final_response"])
@pytest.mark.parametrize("value", [0, "x", True, 1.5])
def test_parameters_of_triton_itself_are_let_pass(
    preprocess: PreprocessModel, name: str, value: object
) -> None:
    outputs = preprocess.run(tensors(TEXT="好", SEED=1), {name: value})

    assert_same(outputs, preprocess.run(tensors(TEXT="好", SEED=1), NO_PARAMETERS))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("speed", "5", "speed: got '5', wanted an integer"),
        ("speed", 5.0, "speed: got 5.0, wanted an integer"),
        ("speed", False, "speed: got False, wanted an integer"),
        ("top_k", None, "top_k: got a NoneType, wanted an integer"),
        ("temperature", "0.3", "temperature: got '0.3', wanted a number"),
        ("temperature", True, "temperature: got True, wanted a number"),
        ("refine", 1, "refine: got 1, wanted true or false"),
        ("refine", "true", "refine: got 'true', wanted true or false"),
        ("voice", 7, "voice: got 7, wanted a string"),
        ("lang", ["zh"], "lang: got a list, wanted a string"),
        ("temperature", 10**400, "temperature: got an integer beyond 64 bits, wanted a number"),
    ],
)
def test_a_parameter_of_another_type_is_refused(
    preprocess: PreprocessModel, name: str, value: object, wanted: str
) -> None:
    assert refusal(preprocess, tensors(TEXT="好"), {name: value}) == wanted


def test_an_unknown_or_missing_input_is_refused(preprocess: PreprocessModel) -> None:
    assert refusal(preprocess, tensors(SEED=1)) == "TEXT: missing"
    inputs = tensors(TEXT="好") | {"SPEAKER": np.zeros((1, 1), np.int32)}
    assert refusal(preprocess, inputs).startswith("'SPEAKER': unknown input, known are TEXT, SEED")


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ({"TEXT": np.array([b"a"], object)}, "TEXT: got shape [1], wanted [N, 1]"),
        ({"TEXT": np.array(b"a", object)}, "TEXT: got shape [], wanted [N, 1]"),
        ({"TEXT": np.array([[b"a", b"b"]], object)}, "TEXT: got shape [1, 2], wanted [N, 1]"),
        ({"TEXT": np.zeros((0, 1), object)}, "TEXT: got shape [0, 1], wanted [N, 1]"),
        ({"TEXT": np.array([[b"a"]] * 65, object)}, "TEXT: got shape [65, 1], wanted [N, 1]"),
        ({"TEXT": np.array([[b"a"]])}, "TEXT: got |S1, wanted STRING"),
        ({"TEXT": np.array([["a"]], object)}, "TEXT: got str, wanted bytes"),
        ({"TEXT": np.array([[b"a"], [None]], object)}, "TEXT[1]: got NoneType, wanted bytes"),
        (tensors(TEXT="a") | {"SEED": np.zeros((1, 1), np.int32)}, "SEED: got int32, wanted INT64"),
        (tensors(TEXT="a") | {"TOP_P": np.zeros((1, 1))}, "TOP_P: got float64, wanted FP32"),
        (tensors(TEXT="a", SEED=[1, 2]), "SEED: got shape [2, 1], wanted [N, 1]"),
        (tensors(TEXT="a") | {"SEED": np.zeros(1, np.int64)}, "SEED: got shape [1], wanted [N, 1]"),
    ],
)
def test_a_tensor_of_another_type_or_shape_is_refused(
    preprocess: PreprocessModel, inputs: Tensors, wanted: str
) -> None:
    assert refusal(preprocess, inputs).startswith(wanted)


def test_as_many_rows_as_triton_joins_are_served(preprocess: PreprocessModel) -> None:
    outputs = preprocess.run(tensors(TEXT=["好"] * MAX_BATCH_SIZE), NO_PARAMETERS)

    assert outputs["TEXT_IDS"].shape == (MAX_BATCH_SIZE, 5)


# Anything at all

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
)
PARAMETERS = st.dictionaries(
    st.sampled_from([spec.name.lower() for spec in OPTIONS] + ["timeout"]) | st.text(max_size=5),
    SCALARS,
    max_size=3,
)
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "STRING": st.binary(max_size=20)
    | st.text(max_size=20).map(lambda t: t.encode("utf-8", "replace")),
    "INT64": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 30),
    "INT32": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 30),
    "FP32": st.floats(width=32) | st.floats(0, 1, width=32),
    "BOOL": st.booleans(),
}


@st.composite
def any_inputs(draw: st.DrawFn) -> Tensors:
    num_rows = draw(st.integers(1, 3))
    chosen = draw(st.sets(st.sampled_from([spec.name for spec in OPTIONS]), max_size=4))
    made: Tensors = {}
    for name in ("TEXT", *sorted(chosen)):
        dtype = OPTION_DTYPES[name]
        rows = draw(st.lists(ELEMENTS[dtype], min_size=num_rows, max_size=num_rows))
        array: npt.NDArray[Any] = np.empty((num_rows, 1), NUMPY_DTYPES[dtype])
        array[:, 0] = rows
        made[name] = array
    return made


@settings(deadline=None, max_examples=500)
@given(any_inputs(), PARAMETERS)
def test_any_call_is_served_or_refused_by_name(
    preprocess: PreprocessModel, inputs: Tensors, parameters: dict[str, object]
) -> None:
    num_rows = len(inputs["TEXT"])
    fields = tuple(name for spec in PREPROCESS.inputs for name in (spec.name, spec.name.lower()))
    try:
        outputs = preprocess.run(inputs, parameters)
    except InvalidRequestError as error:
        message = str(error)
        known = message.startswith(tuple(f"{field}{end}" for field in fields for end in (":", "[")))
        unknown = ": unknown parameter, known are " in message
    else:
        known = all(len(array) == num_rows for array in outputs.values())
        unknown = False
        assert (outputs["SEED_USED"] >= 0).all()
        assert np.isfinite(outputs["SPEAKER_EMBEDDING"]).all()
    assert known or unknown


@settings(deadline=None, max_examples=200)
@given(PARAMETERS)
def test_any_parameters_that_came_through_json_are_served_or_refused(
    preprocess: PreprocessModel, parameters: dict[str, object]
) -> None:
    parsed = json.loads(json.dumps(parameters))
    refused = None
    try:
        preprocess.run(tensors(TEXT="好"), parsed)
    except InvalidRequestError as error:
        refused = error
    assert refused is None or str(refused)


# Load


def test_missing_files_are_a_load_error(tmp_path: Path, special_ids: dict[str, int]) -> None:
    write_preprocess_files(tmp_path)
    (tmp_path / "speaker_statistics.npy").unlink()

    with pytest.raises(ModelLoadError, match=r"speaker_statistics\.npy: cannot be read"):
        PreprocessModel(tmp_path, special_ids)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: cannot be read"):
        PreprocessModel(tmp_path / "nowhere", special_ids)


def test_the_operator_sets_the_most_characters_of_a_text(
    preprocess_directory: Path, special_ids: dict[str, int]
) -> None:
    model = PreprocessModel(preprocess_directory, special_ids, parameters={"max_characters": "2"})

    assert model.run(tensors(TEXT="你好"), NO_PARAMETERS)["SEGMENT_TEXT"][0, 0].decode() == "你好"
    with pytest.raises(InvalidRequestError, match=r"^TEXT: got 3 characters, wanted at most 2$"):
        model.run(tensors(TEXT="你好你"), NO_PARAMETERS)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_characters": "0"}, "parameter max_characters: got 0, wanted 1 to "),
        ({"max_text": "5"}, "parameter max_text: unknown, known are max_characters"),
    ],
)
def test_a_wrong_parameter_is_a_load_error(
    preprocess_directory: Path,
    special_ids: dict[str, int],
    parameters: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        PreprocessModel(preprocess_directory, special_ids, parameters=parameters)

    assert str(caught.value).startswith(message)
