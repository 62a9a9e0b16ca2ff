"""Every form in which a request may come: rows, optional inputs, outputs, parameters, HTTP."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from triton_calls import OUTPUT_NAMES, RunningServer, infer_input, json_input, text_tensors

from chattts_triton.constants import num_audio_samples
from chattts_triton.voices.speaker import STATISTICS_FILE, SpeakerStatistics, encode_speaker

TEXT = "你好，世界。"
CAP = 6
SUBSETS = [
    subset
    for size in range(1, len(OUTPUT_NAMES) + 1)
    for subset in itertools.combinations(OUTPUT_NAMES, size)
]


@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_b_76_each_subset_of_the_outputs_can_be_asked_for(
    server: RunningServer, subset: tuple[str, ...]
):
    tensors = text_tensors(TEXT, SEED=5, MAX_NEW_TOKENS=2)
    everything = server.call("chattts", tensors)

    some = server.call("chattts", tensors, outputs=subset)

    assert set(some) == set(subset)
    for name in subset:
        assert np.array_equal(some[name], everything[name])


def test_b_60_b_82_six_texts_give_six_rows_in_order(server: RunningServer):
    texts = ["一", "二二", "Three.", "四四四四", "five", "六"]
    seeds = [11, 12, 13, 14, 15, 16]

    together = server.speak(texts, SEED=seeds, MAX_NEW_TOKENS=CAP)

    for speech, text, seed in zip(together, texts, seeds, strict=True):
        alone = server.speak_one(text, SEED=seed, MAX_NEW_TOKENS=CAP)
        assert (speech.seed, speech.audio, speech.pcm16) == (seed, alone.audio, alone.pcm16)


def test_b_82_three_texts_give_three_rows_of_ids_in_order(server: RunningServer):
    texts = ["一二三", "Hi.", "今天天气很好"]

    together = server.call("preprocess", text_tensors(texts, SEED=[1, 2, 3]))

    for row, text in enumerate(texts):
        alone = server.call("preprocess", text_tensors(text, SEED=row + 1))
        length = int(together["NUM_TEXT_IDS"][row, 0])
        assert length == alone["NUM_TEXT_IDS"][0, 0]
        assert np.array_equal(together["TEXT_IDS"][row, :length], alone["TEXT_IDS"][0])
        assert not together["TEXT_IDS"][row, length:].any()
        assert np.array_equal(together["SPEAKER_EMBEDDING"][row], alone["SPEAKER_EMBEDDING"][0])


def test_b_52_rows_of_different_length_are_cut_by_audio_length_and_padded_with_zeros(
    server: RunningServer,
):
    short, long = server.speak(["你好", "今天天气很好。"], SEED=[1, 2], MAX_NEW_TOKENS=[2, CAP])

    assert len(short.samples) <= num_audio_samples(2) < len(long.samples)
    assert len(short.padding) == len(long.audio) - len(short.audio)
    assert not any(short.padding)
    assert short.audio == server.speak_one("你好", SEED=1, MAX_NEW_TOKENS=2).audio


def test_sixty_four_texts_fit_into_one_call(server: RunningServer):
    together = server.speak(["你好"] * 64, SEED=list(range(64)), MAX_NEW_TOKENS=2)

    assert [speech.seed for speech in together] == list(range(64))
    assert len({speech.audio for speech in together}) == 64


def test_b_59_the_outputs_have_the_declared_types_and_shapes(server: RunningServer):
    outputs = server.call("chattts", text_tensors(TEXT, SEED=5, MAX_NEW_TOKENS=CAP))

    length = int(outputs["AUDIO_LENGTH"][0, 0])
    assert {name: (array.dtype, array.shape) for name, array in outputs.items()} == {
        "AUDIO": (np.float32, (1, length)),
        "PCM16": (np.int16, (1, length)),
        "AUDIO_LENGTH": (np.int64, (1, 1)),
        "SEED_USED": (np.int64, (1, 1)),
        "FINISH_REASON": (np.object_, (1, 1)),
        "REFINED_TEXT": (np.object_, (1, 1)),
        "WARNINGS": (np.object_, (1, 1)),
    }
    assert length in {num_audio_samples(steps) for steps in range(1, CAP + 1)}
    assert outputs["FINISH_REASON"][0, 0] in (b"stop", b"length")


def test_b_80_each_sample_takes_four_bytes_on_the_wire_and_two_as_pcm16(server: RunningServer):
    response = server.infer("chattts", text_tensors(TEXT, SEED=5, MAX_NEW_TOKENS=3)).get_response()

    names = [output.name for output in response.outputs]
    num_bytes = dict(zip(names, map(len, response.raw_output_contents), strict=True))
    (audio,) = (output for output in response.outputs if output.name == "AUDIO")
    num_samples = audio.shape[1]
    assert (audio.datatype, num_bytes["AUDIO"]) == ("FP32", 4 * num_samples)
    assert num_bytes["PCM16"] == 2 * num_samples
    assert num_bytes["SEED_USED"] == num_bytes["AUDIO_LENGTH"] == 8


def test_b_77_options_left_out_equal_the_defaults_sent(server: RunningServer):
    left_out = server.speak_one(TEXT, SEED=9)

    sent = server.speak_one(
        TEXT,
        SEED=9,
        SPEED=5,
        TEMPERATURE=0.3,
        TOP_P=0.7,
        TOP_K=20,
        REPETITION_PENALTY=1.05,
        MAX_NEW_TOKENS=28 * len(TEXT) + 94,
        REFINE=False,
        LANG="zh",
        VOICE="",
    )

    assert sent == left_out


def test_the_rows_of_a_call_have_options_of_their_own(server: RunningServer):
    options = {"TEMPERATURE": [0.1, 1.5], "SPEED": [0, 9], "TOP_K": [3, 50]}

    first, second = server.speak([TEXT, TEXT], SEED=4, MAX_NEW_TOKENS=CAP, **options)

    for row, speech in enumerate((first, second)):
        own = {name: values[row] for name, values in options.items()}
        assert speech == server.speak_one(TEXT, SEED=4, MAX_NEW_TOKENS=CAP, **own)
    assert first.audio != second.audio


def test_b_49_the_speaker_string_of_a_seeds_voice_gives_the_same_audio(server: RunningServer):
    directory = server.manifest.member_directory(server.repository, "preprocess")
    voice = encode_speaker(SpeakerStatistics(directory / STATISTICS_FILE).draw(8))

    by_seed = server.speak_one(TEXT, SEED=8, MAX_NEW_TOKENS=CAP)
    by_voice = server.speak_one(TEXT, SEED=8, MAX_NEW_TOKENS=CAP, VOICE=voice)
    other_seed = server.speak_one(TEXT, SEED=9, MAX_NEW_TOKENS=CAP)

    assert by_voice == by_seed
    assert server.speak_one(TEXT, SEED=9, MAX_NEW_TOKENS=CAP, VOICE=voice).audio not in (
        by_seed.audio,
        other_seed.audio,
    )


def test_request_parameters_stand_in_for_tensors(server: RunningServer):
    by_tensor = server.speak_one(TEXT, SEED=7, TEMPERATURE=0.5, MAX_NEW_TOKENS=CAP)

    parameters = {"seed": 7, "temperature": 0.5, "max_new_tokens": CAP}

    assert server.speak_one(TEXT, parameters=parameters) == by_tensor
    assert server.speak_one(TEXT, parameters={"max_new_tokens": CAP}).audio != by_tensor.audio


def test_a_parameter_applies_to_every_row_and_a_tensor_wins(server: RunningServer):
    parameters = {"seed": 7, "max_new_tokens": CAP}

    rows = server.speak(["你好", "再见"], parameters=parameters)
    overruled = server.speak_one("你好", SEED=8, parameters=parameters)

    assert [speech.seed for speech in rows] == [7, 7]
    assert overruled == server.speak_one("你好", SEED=8, MAX_NEW_TOKENS=CAP)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"sed": 7}, "'sed': unknown parameter"),
        ({"seed": "42"}, "seed: got '42', wanted an integer"),
        ({"seed": True}, "seed: got True, wanted an integer"),
        ({"temperature": "hot"}, "temperature: got 'hot', wanted a number"),
        ({"seed": -2}, "SEED: got -2"),
    ],
)
def test_b_51_an_unknown_parameter_or_one_of_a_wrong_type_is_refused(
    server: RunningServer, parameters: dict[str, object], field: str
):
    refusal = server.refused(TEXT, parameters=parameters)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"in ensemble 'chattts', preprocess: {field}")
    server.assert_alive()


def test_http_infer_gives_what_grpc_gives(server: RunningServer):
    expected = server.speak_one(TEXT, SEED=7, MAX_NEW_TOKENS=CAP)
    inputs = [json_input("TEXT", [TEXT]), json_input("MAX_NEW_TOKENS", [CAP])]

    status, answer = server.post("infer", {"inputs": inputs, "parameters": {"seed": 7}})

    assert status == 200
    data = {output["name"]: output["data"] for output in answer["outputs"]}
    assert np.array(data["AUDIO"], np.float32).tobytes() == expected.audio
    assert np.array(data["PCM16"], np.int16).tobytes() == expected.pcm16
    assert data["SEED_USED"] == [7]
    assert data["FINISH_REASON"] == [expected.finish_reason]


def test_http_infer_takes_several_texts_and_a_choice_of_outputs(server: RunningServer):
    inputs = [json_input("TEXT", ["你好", "再见"]), json_input("MAX_NEW_TOKENS", [2, 3])]
    body = {"inputs": inputs, "outputs": [{"name": "AUDIO_LENGTH"}, {"name": "SEED_USED"}]}

    status, answer = server.post("infer", {**body, "parameters": {"seed": 3}})

    assert status == 200
    assert {output["name"]: output["data"] for output in answer["outputs"]} == {
        "AUDIO_LENGTH": [num_audio_samples(2), num_audio_samples(3)],
        "SEED_USED": [3, 3],
    }


def test_http_generate_gives_what_grpc_gives(server: RunningServer):
    expected = server.speak_one(TEXT, SEED=42, MAX_NEW_TOKENS=CAP)

    by_tensor = server.post("generate", {"TEXT": TEXT, "SEED": 42, "MAX_NEW_TOKENS": CAP})
    by_parameter = server.post("generate", {"TEXT": TEXT, "seed": 42, "max_new_tokens": CAP})

    for status, answer in (by_tensor, by_parameter):
        assert status == 200
        assert np.array(answer["PCM16"], np.int16).tobytes() == expected.pcm16
        assert answer["SEED_USED"] == 42


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("generate", {"TEXT": ""}, "preprocess: TEXT: got '', which has no speakable text"),
        ("generate", {"TEXT": "hi", "sed": 7}, "preprocess: 'sed': unknown parameter"),
        ("generate", {"TEXT": "hi", "seed": 1.5}, "preprocess: seed: got 1.5, wanted an integer"),
        ("generate", {"TEXT": "hi", "SPEED": 10}, "preprocess: SPEED: got 10, wanted 0 to 9"),
        ("generate", {"SEED": 7}, "preprocess: TEXT: missing"),
        (
            "infer",
            {"inputs": [json_input("TEXT", ["hi"])], "parameters": {"sed": 7}},
            "preprocess: 'sed': unknown parameter",
        ),
        ("infer", {"inputs": [json_input("TEXT", ["hi"], [1])]}, "Expected [-1,1], got [1]"),
        ("infer", {"inputs": [{**json_input("SEED", [7]), "datatype": "INT32"}]}, "'INT64'"),
    ],
)
def test_http_answers_a_wrong_request_with_status_400(
    server: RunningServer, path: str, body: dict[str, object], text: str
):
    status, answer = server.post(path, body)

    assert status == 400
    assert text in answer["error"]
    server.assert_alive()


def test_b_51_a_json_number_that_fits_no_integer_tensor_leaves_the_server_alive(
    server: RunningServer,
):
    """Triton's own JSON parser refuses it, and calls that an internal error."""
    status, answer = server.post("generate", {"TEXT": "hi", "SEED": 1.5})

    assert status == 500
    assert "non-signed-integer" in answer["error"]
    server.assert_alive()


@pytest.mark.parametrize("shape", [[1], [1, 1, 1], [1, 2]])
def test_b_73_a_text_of_another_shape_is_refused_with_the_shape_that_is_wanted(
    server: RunningServer, shape: list[int]
):
    text = np.full(shape, b"hi", dtype=np.object_)

    refusal = server.refusal("chattts", {"TEXT": text})

    assert refusal.status == "INVALID_ARGUMENT"
    assert "input 'TEXT'" in refusal.text
    assert "Expected [-1,1]" in refusal.text
    server.assert_alive()


def test_b_73_the_shape_with_the_batch_dimension_works(server: RunningServer):
    tensors = {"TEXT": np.array([["你好".encode()]], dtype=np.object_), "MAX_NEW_TOKENS": [[1]]}

    assert server.call("chattts", tensors)["AUDIO"].shape == (1, 256)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SEED", np.array([[42]], np.int32)),
        ("SPEED", np.array([[5]], np.int64)),
        ("TEMPERATURE", np.array([[1]], np.int32)),
        ("TOP_K", np.array([[20.0]], np.float32)),
        ("REFINE", np.array([[0]], np.int32)),
        ("VOICE", np.array([[1.0]], np.float32)),
        ("TEXT", np.array([[1]], np.int32)),
    ],
)
def test_b_79_an_input_of_another_type_is_refused_by_name(
    server: RunningServer, name: str, values: np.ndarray
):
    wanted = infer_input("chattts", name, [[b"1" if name in ("TEXT", "VOICE") else 1]])

    refusal = server.refusal("chattts", {**text_tensors("hi", MAX_NEW_TOKENS=1), name: values})

    assert refusal.status == "INVALID_ARGUMENT"
    assert f"inference input '{name}'" in refusal.text
    assert f"expects '{wanted.datatype()}'" in refusal.text
    server.assert_alive()
