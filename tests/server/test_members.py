"""Direct calls of the members, where the ensemble shows only the end of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from triton_calls import Refusal, RunningServer, text_tensors

from chattts_triton.constants import num_audio_samples
from chattts_triton.serving.record import RequestRecord, to_tensor
from chattts_triton.tensors import GPT, READ

RESERVED = ("[Stts]", "[Ptts]", "[spk_emb]", "[empty_spk]", "[Sbreak]", "[Pbreak]", "[Ebreak]")
HIDDEN_SIZE = 768


def text_ids(server: RunningServer, text: str, **options: Any) -> list[int]:
    outputs = server.call("preprocess", text_tensors(text, SEED=1, **options))
    assert outputs["TEXT_IDS"].shape == (1, outputs["NUM_TEXT_IDS"][0, 0])
    return outputs["TEXT_IDS"][0].tolist()


def gpt_inputs(server: RunningServer, texts: list[str], seeds: list[int], cap: int) -> Any:
    outputs = server.call("preprocess", text_tensors(texts, SEED=seeds, MAX_NEW_TOKENS=cap))
    outputs["SEED"] = outputs["SEED_USED"]
    return {spec.name: outputs[spec.name] for spec in GPT.inputs if spec not in READ}


def decoder_inputs(num_steps: int, num_codes: int, **changes: Any) -> dict[str, Any]:
    hiddens = np.random.default_rng(0).normal(size=(1, num_steps, HIDDEN_SIZE))
    inputs = {"HIDDENS": hiddens.astype(np.float32), "NUM_CODES": [[num_codes]], "SEED": [[1]]}
    return {**inputs, **changes}


@pytest.mark.parametrize(
    "text",
    [
        "你好",
        "你好[spk_emb]世界",
        "[Ptts]你好[Ebreak]",
        "[Stts][spk_emb][empty_spk]hi[Ptts]",
        "数组[0]等于5",
        "see [citation needed] here",
        "[[spk_emb]]你好[Sbreak][Pbreak]",
        "【spk_emb】你好［spk_emb］",
    ],
)
def test_b_20_b_21_a_prompt_holds_each_reserved_id_as_often_as_ours_put_it_there(
    server: RunningServer, text: str
):
    special_ids = server.manifest.special_ids

    ids = text_ids(server, text)

    wanted = {"[Stts]": 1, "[Ptts]": 1, "[spk_emb]": 1}
    assert {token: ids.count(special_ids[token]) for token in RESERVED} == {
        token: wanted.get(token, 0) for token in RESERVED
    }


def test_b_20_what_stands_in_unknown_brackets_is_read_as_text(server: RunningServer):
    assert text_ids(server, "see [citation needed] here") == text_ids(
        server, "see citation needed here"
    )


def test_b_21_a_text_with_a_speaker_slot_of_its_own_is_spoken(server: RunningServer):
    speech = server.speak_one("你好[spk_emb]世界", SEED=3, MAX_NEW_TOKENS=4)

    assert speech == server.speak_one("你好spk emb世界", SEED=3, MAX_NEW_TOKENS=4)


def test_b_50_each_speed_becomes_its_own_special_id(server: RunningServer):
    special_ids = server.manifest.special_ids
    speed_ids = [special_ids[f"[speed_{speed}]"] for speed in range(10)]

    for speed in range(10):
        ids = text_ids(server, "你好", SPEED=speed)

        assert [each for each in ids if each in speed_ids] == [speed_ids[speed]]


def test_b_66_preprocess_sees_the_text_itself(server: RunningServer):
    assert text_ids(server, "😀你好") == text_ids(server, "你好")
    assert len(text_ids(server, "😀你好")) == 4 + len("你好")


def test_b_31_each_seed_has_a_speaker_vector_of_its_own(server: RunningServer):
    vectors = [
        server.call("preprocess", text_tensors("你好", SEED=seed))["SPEAKER_EMBEDDING"].tobytes()
        for seed in (1, 2, 3, 1)
    ]

    assert len(set(vectors)) == 3
    assert vectors[0] == vectors[3]


def test_b_34_b_45_codes_are_the_same_alone_and_batched_with_texts_of_other_lengths(
    server: RunningServer,
):
    texts = ["你好", "今天天气很好，我们去公园走走吧。", "Yes.", "总结一下，大模型功能的扩展"]
    seeds = [42, 1, 2, 3]

    batch = server.call("gpt", gpt_inputs(server, texts, seeds, cap=24))

    for row, (text, seed) in enumerate(zip(texts, seeds, strict=True)):
        alone = server.call("gpt", gpt_inputs(server, [text], [seed], cap=24))
        num_codes = int(alone["NUM_CODES"][0, 0])
        assert batch["NUM_CODES"][row, 0] == num_codes
        assert np.array_equal(batch["CODES"][row, :num_codes], alone["CODES"][0])
        assert np.array_equal(batch["HIDDENS"][row, :num_codes], alone["HIDDENS"][0])
        assert not batch["CODES"][row, num_codes:].any()


def test_gpt_gives_the_outputs_that_are_asked_for(server: RunningServer):
    inputs = gpt_inputs(server, ["你好"], [1], cap=3)

    assert set(server.call("gpt", inputs, outputs=["CODES"])) == {"CODES"}
    assert set(server.call("gpt", inputs)) == {spec.name for spec in GPT.outputs}


def change_ids(inputs: Any) -> None:
    inputs["TEXT_IDS"] = inputs["TEXT_IDS"].copy()
    inputs["TEXT_IDS"][0, 2] = 21178


WRONG_GPT_INPUTS: list[tuple[Callable[[Any], Any], str]] = [
    (change_ids, "TEXT_IDS: got 21178, wanted 0 to 21177"),
    (lambda i: i.update(NUM_TEXT_IDS=[[0]]), "NUM_TEXT_IDS: got 0, wanted 1 to 6"),
    (lambda i: i.update(NUM_TEXT_IDS=[[7]]), "NUM_TEXT_IDS: got 7, wanted 1 to 6"),
    (lambda i: i.update(NUM_TEXT_IDS=[[3, -1]]), "NUM_TEXT_IDS: got [3, -1], wanted 1 to 6"),
    (lambda i: i.update(NUM_TEXT_IDS=[[3, 3]]), "SEED: got 1, wanted 2 segments"),
    (
        lambda i: i.update(REFINE_IDS=[[5, 5]], NUM_REFINE_IDS=[[1, 1]]),
        "NUM_REFINE_IDS: got 2, wanted 1 segments",
    ),
    (
        lambda i: i.update(PROMPT_CODES=[[[1, 2, 3, 626]]], NUM_PROMPT_CODES=[[1]]),
        "PROMPT_CODES: got 626, wanted 0 to 625",
    ),
    (
        lambda i: i.update(PROMPT_CODES=[[[1, 2, 3, 4]]], NUM_PROMPT_CODES=[[2]]),
        "NUM_PROMPT_CODES: got 2, wanted 1 to 1",
    ),
    (
        lambda i: i.update(SEGMENT_TEXT=[[b"\xff"]]),
        "SEGMENT_TEXT: got bytes that are not UTF-8 (at byte 0)",
    ),
    (lambda i: i.update(SPEAKER_EMBEDDING=[[1.0] * 5]), "SPEAKER_EMBEDDING: got 5"),
    (lambda i: i.update(SEED=[[-1]]), "SEED: got -1"),
    (lambda i: i.update(TEMPERATURE=[[float("nan")]]), "TEMPERATURE: got nan"),
    (lambda i: i.update(MAX_NEW_CODES=[[2049]]), "MAX_NEW_TOKENS: got 2049"),
    (
        lambda i: i.update(TEXT_IDS=[[1] * 3000], NUM_TEXT_IDS=[[3000]], MAX_NEW_CODES=[[2048]]),
        "TEXT_IDS: got 3000, wanted a prompt of 1 to 2048 tokens",
    ),
]


@pytest.mark.parametrize(
    ("change", "text"), WRONG_GPT_INPUTS, ids=[text for _, text in WRONG_GPT_INPUTS]
)
def test_b_101_gpt_refuses_a_wrong_input_by_name(
    server: RunningServer, change: Callable[[Any], Any], text: str
):
    inputs = gpt_inputs(server, ["你好"], [1], cap=3)
    change(inputs)

    refusal = server.refusal("gpt", inputs)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"gpt: {text}")


def test_a_wrong_request_of_gpt_does_not_end_those_that_run(server: RunningServer):
    wrong = gpt_inputs(server, ["你好"], [1], cap=3)
    change_ids(wrong)
    good = {"SEED": 6, "MAX_NEW_TOKENS": 80}
    expected = server.speak_one("你好，世界。", **good)
    num_refused = 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.speak_one, "你好，世界。", **good)
        while not running.done():
            server.refusal("gpt", wrong)
            num_refused += 1

    assert num_refused > 1
    assert running.result() == expected


@pytest.mark.parametrize(("num_codes", "num_samples"), [(1, 256), (7, 3328), (2048, 1_048_320)])
def test_b_64_the_decoder_takes_one_to_2048_steps(
    server: RunningServer, num_codes: int, num_samples: int
):
    outputs = server.call("vocos_decoder", decoder_inputs(num_codes, num_codes))

    assert num_samples == num_audio_samples(num_codes)
    assert outputs["AUDIO_LENGTH"] == [[num_samples]]
    assert outputs["AUDIO"].shape == outputs["PCM16"].shape == (1, num_samples)
    assert np.isfinite(outputs["AUDIO"]).all()


@pytest.mark.parametrize(
    ("inputs", "status", "text"),
    [
        (decoder_inputs(3, 0), "INVALID_ARGUMENT", "NUM_CODES: got 0, wanted 1 to 3"),
        (decoder_inputs(0, 0), "INVALID_ARGUMENT", "NUM_CODES: got 0, wanted 1 to 0"),
        (decoder_inputs(3, -1), "INVALID_ARGUMENT", "NUM_CODES: got -1, wanted 1 to 3"),
        (decoder_inputs(3, 4), "INVALID_ARGUMENT", "NUM_CODES: got 4, wanted 1 to 3"),
        (decoder_inputs(3, 3, SEED=[[-1]]), "INVALID_ARGUMENT", "SEED: got -1, wanted 0 to "),
        (
            decoder_inputs(3, 3, HIDDENS=np.zeros((1, 3, 5), np.float32)),
            "INVALID_ARGUMENT",
            "HIDDENS: got 5, wanted rows of 768 values",
        ),
        (
            decoder_inputs(3, 3, HIDDENS=np.full((1, 3, HIDDEN_SIZE), np.nan, np.float32)),
            "INTERNAL",
            "audio of 3 code steps is not finite",
        ),
    ],
)
def test_b_64_b_101_the_decoder_fails_by_name(
    server: RunningServer, inputs: dict[str, Any], status: str, text: str
):
    refusal = server.refusal("vocos_decoder", inputs)

    assert refusal.status == status
    assert refusal.text.startswith(f"vocos_decoder: {text}")
    server.assert_alive()


@pytest.mark.parametrize("pause_samples", [-1, 120_001])
def test_the_decoder_refuses_a_pause_out_of_range(server: RunningServer, pause_samples: int):
    refusal = server.refusal(
        "vocos_decoder", decoder_inputs(3, 3, PAUSE_SAMPLES=[[pause_samples]], TRIM=[[False]])
    )

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(
        f"vocos_decoder: PAUSE_SAMPLES: got [{pause_samples}], wanted 0 to 120000"
    )


def test_trim_cuts_a_pause_at_the_end_to_50_ms_and_none_between_segments(server: RunningServer):
    """The tensors of two segments, the second one with a pause behind it as well."""
    pauses = {"NUM_CODES": [[4, 3]], "PAUSE_SAMPLES": [[12_000, 24_000]]}
    segments = {"SEED": [[1, 2]], **pauses}

    plain = server.call("vocos_decoder", decoder_inputs(7, 7, **segments, TRIM=[[False]]))
    trimmed = server.call("vocos_decoder", decoder_inputs(7, 7, **segments, TRIM=[[True]]))

    first, second = num_audio_samples(4), num_audio_samples(3)
    whole = plain["AUDIO"][0]
    assert len(whole) == first + 12_000 + second + 24_000
    assert not whole[first : first + 12_000].any()
    assert not whole[-24_000:].any()
    (loud,) = np.nonzero(np.abs(whole) >= 10 ** (-60 / 20))
    assert loud[0] < 1200
    assert trimmed["AUDIO_LENGTH"].item() == loud[-1] + 1 + 1200 < len(whole) - 22_000
    assert np.array_equal(trimmed["AUDIO"][0], whole[: loud[-1] + 1 + 1200])


def test_b_101_preprocess_begins_its_errors_with_its_name(server: RunningServer):
    refusal = server.refusal("preprocess", text_tensors(""))

    assert refusal.text.startswith("preprocess: TEXT: got ''")


def test_the_decoder_does_not_begin_what_is_too_late(server: RunningServer):
    record = RequestRecord.begin("late", time.monotonic() - 10)
    record.steps = 8

    refusal = server.refusal(
        "vocos_decoder", decoder_inputs(8, 8, RECORD=to_tensor(record, 1)), timeout_us=9_000_000
    )

    assert refusal == Refusal(
        "CANCELLED", "vocos_decoder: deadline of 9000 ms exceeded after 8 steps"
    )
