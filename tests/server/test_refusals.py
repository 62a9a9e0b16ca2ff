"""Wrong requests: each is refused by name with INVALID_ARGUMENT, and harms nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from triton_calls import RunningServer, text_tensors

from chattts_triton.sampling_params import MAX_SEED
from chattts_triton.voices.speaker import STATISTICS_FILE, SpeakerStatistics, encode_speaker


@pytest.mark.parametrize("text", ["", " ", "\n", "!!!", "”", "—", "😀", "[laugh]"])
def test_b_12_a_text_with_nothing_to_speak_is_refused(server: RunningServer, text: str):
    refusal = server.refused(text)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith("in ensemble 'chattts', preprocess: TEXT: got ")
    assert "has no speakable text" in refusal.text
    server.assert_alive()


def test_a_call_without_text_names_the_text(server: RunningServer):
    status, answer = server.post("generate", {"SEED": 1})
    refusal = server.refusal("chattts", {"SEED": np.asarray([[1]], dtype=np.int64)})

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text == "in ensemble 'chattts', preprocess: TEXT: missing"
    assert (status, answer) == (400, {"error": refusal.text})
    server.assert_alive()


@pytest.mark.parametrize("text", [b"\xff\xfe\x41", b"\xc3", "你好".encode()[:-1], b"\xed\xa0\x80"])
def test_b_66_bytes_that_are_not_utf_8_are_refused(server: RunningServer, text: bytes):
    refusal = server.refused(text)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(
        "in ensemble 'chattts', preprocess: TEXT: got bytes that are not UTF-8 (at byte "
    )
    server.assert_alive()


@pytest.mark.parametrize("seed", [-2, -(2**63)])
def test_b_51_a_seed_below_the_range_is_refused(server: RunningServer, seed: int):
    refusal = server.refused("hi", SEED=seed)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text == (
        f"in ensemble 'chattts', preprocess: SEED: got {seed}, "
        f"wanted 0 to {MAX_SEED}, or -1 for a fresh one"
    )
    server.assert_alive()


@pytest.mark.parametrize("speed", [10, -1, 123456789])
def test_b_50_a_speed_without_a_token_is_refused(server: RunningServer, speed: int):
    refusal = server.refused("hi", SPEED=speed)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text == f"in ensemble 'chattts', preprocess: SPEED: got {speed}, wanted 0 to 9"
    server.assert_alive()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("TEMPERATURE", 0.0),
        ("TEMPERATURE", float("nan")),
        ("TEMPERATURE", float("inf")),
        ("TOP_P", 0.0),
        ("TOP_P", 1.01),
        ("TOP_K", 0),
        ("TOP_K", 627),
        ("REPETITION_PENALTY", 0.0),
        ("REPETITION_PENALTY", float("nan")),
        ("MAX_NEW_TOKENS", 0),
        ("MAX_NEW_TOKENS", 2049),
        ("LANG", "fr"),
        ("LANG", b"\xff"),
        ("VOICE", b"\xff"),
    ],
)
def test_an_option_out_of_range_is_refused(server: RunningServer, option: str, value: Any):
    refusal = server.refused("hi", **{option: value})

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"in ensemble 'chattts', preprocess: {option}: got ")
    server.assert_alive()


def test_b_48_a_voice_that_is_no_whole_speaker_string_is_refused(server: RunningServer):
    directory = server.manifest.member_directory(server.repository, "preprocess")
    voice = encode_speaker(SpeakerStatistics(directory / STATISTICS_FILE).draw(1))

    for wrong in ("abc", voice[:-10], voice + voice, voice[100:], "一二三四", "蘁淰敥欀"):
        refusal = server.refused("hi", VOICE=wrong)

        assert refusal.status == "INVALID_ARGUMENT"
        assert refusal.text.startswith("in ensemble 'chattts', preprocess: VOICE: got ")
    assert server.speak_one("hi", VOICE=voice, MAX_NEW_TOKENS=1).is_sound()


def test_a_text_that_is_too_long_is_refused(server: RunningServer):
    for text in ("字" * 5001, "字" * 100_000):
        refusal = server.refused(text)

        assert refusal.status == "INVALID_ARGUMENT"
        assert refusal.text.startswith("in ensemble 'chattts', preprocess: TEXT: got ")
        assert "wanted at most" in refusal.text
    server.assert_alive()


@pytest.mark.parametrize(
    ("texts", "options", "field"),
    [
        (["你好", "", "再见"], {}, "TEXT[1]"),
        (["你好", b"\xff"], {}, "TEXT[1]"),
        (["你好", "再见"], {"SEED": [-2, 1]}, "SEED[0]"),
        (["你好", "再见"], {"VOICE": ["", "abc"]}, "VOICE[1]"),
    ],
)
def test_in_a_batch_the_refused_row_is_named(
    server: RunningServer, texts: list[str], options: dict[str, Any], field: str
):
    refusal = server.refused(texts, **options)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"in ensemble 'chattts', preprocess: {field}: got ")


@pytest.mark.parametrize(
    ("tensors", "outputs", "text"),
    [
        (text_tensors(["你好"] * 65), None, "batch-size must be <= 64"),
        ({**text_tensors(["你好", "再见"]), "SEED": [[1]]}, None, "does not match other inputs"),
        ({**text_tensors("hi"), "SEED": np.array([3])}, None, "input 'SEED'"),
        (text_tensors("hi"), ["MEL"], "unexpected inference output 'MEL'"),
        ({}, None, "request has 0 inputs"),
    ],
)
def test_what_triton_refuses_itself_leaves_the_server_alive(
    server: RunningServer, tensors: dict[str, Any], outputs: list[str] | None, text: str
):
    refusal = server.refusal("chattts", tensors, outputs=outputs)

    assert refusal.status == "INVALID_ARGUMENT"
    assert text in refusal.text
    server.assert_alive()


def test_one_bad_row_fails_its_call_and_not_those_that_run(server: RunningServer):
    good = {"SEED": 6, "MAX_NEW_TOKENS": 80}
    expected = server.speak_one("你好，世界。", **good)
    num_refused = 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.speak_one, "你好，世界。", **good)
        while not running.done():
            refusal = server.refused(["你好", ""], SEED=1)
            assert refusal.status == "INVALID_ARGUMENT"
            num_refused += 1

    assert num_refused > 1
    assert running.result() == expected
