"""Many requests at a time: none may change, delay for ever or swallow another."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from triton_calls import Refusal, RunningServer, Speech, refusal_of
from tritonclient.utils import InferenceServerException

TARGET = ("今天天气很好，我们去公园走走吧。", {"SEED": 7, "MAX_NEW_TOKENS": 24})
TEXTS = [
    "你好",
    "早上好，世界。",
    "Good night, my friend.",
    "总结一下，大模型功能的扩展",
    "嗯",
    "这里的每一杯咖啡！都是艺术品。",
    "Yes",
    "第一个例子是，The book is interesting。",
]


SETTLED_S = 0.5


def speak_at(server: RunningServer, delay_s: float, text: str, options: dict[str, Any]) -> Speech:
    threading.Event().wait(delay_s)  # the arrival times are what is tested
    return server.speak_one(text, **options)


def speak_all(
    server: RunningServer, requests: list[tuple[str, dict[str, Any]]], max_delay_s: float, seed: int
) -> list[Speech]:
    """Each request from a thread of its own, after a random delay."""
    draw = random.Random(seed)
    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [
            pool.submit(speak_at, server, draw.uniform(0, max_delay_s), text, options)
            for text, options in requests
        ]
        return [future.result() for future in futures]


@pytest.mark.parametrize("fixture", ["server", "int8_server"])
def test_b_34_b_53_a_request_is_the_same_alone_and_among_seven_others(
    fixture: str, request: pytest.FixtureRequest
):
    server: RunningServer = request.getfixturevalue(fixture)
    alone = server.speak_one(TARGET[0], **TARGET[1])

    for schedule in range(4):
        draw = random.Random(schedule)
        others = [
            (text, {"SEED": draw.getrandbits(40), "MAX_NEW_TOKENS": draw.randint(1, 40)})
            for text in draw.sample(TEXTS, 7)
        ]
        together = speak_all(server, [TARGET, *others], 0.15, schedule)

        assert together[0] == alone
        for speech, (text, options) in zip(together[1:3], others[:2], strict=True):
            assert speech == server.speak_one(text, **options)


def test_b_33_a_seed_is_untouched_by_another_request_in_flight(server: RunningServer):
    alone = server.speak_one("你好，世界。", SEED=7, MAX_NEW_TOKENS=16)
    pair = [
        ("你好，世界。", {"SEED": 7, "MAX_NEW_TOKENS": 16}),
        ("你好，世界。", {"SEED": 8, "MAX_NEW_TOKENS": 16}),
    ]

    for run in range(8):
        first, second = speak_all(server, pair, 0.02, run)

        assert first == alone
        assert second.audio != alone.audio


def test_b_42_four_equal_seeds_at_once_give_finite_audio_each_as_alone(server: RunningServer):
    options = {"SEED": 42, "TEMPERATURE": 0.1, "TOP_P": 0.75, "TOP_K": 10, "MAX_NEW_TOKENS": 24}
    requests = [(text, options) for text in TEXTS[:4]]

    together = speak_all(server, requests, 0.0, 0)

    for speech, (text, _) in zip(together, requests, strict=True):
        assert speech.is_sound()
        assert speech == server.speak_one(text, **options)


def test_b_99_eight_requests_at_once_get_their_own_audio(server: RunningServer):
    requests = [(text, {"SEED": 100 + n, "MAX_NEW_TOKENS": 12 + n}) for n, text in enumerate(TEXTS)]
    alone = [server.speak_one(text, **options) for text, options in requests]

    together = speak_all(server, requests, 0.0, 0)

    assert together == alone
    assert len({speech.audio for speech in together}) == 8
    assert all(speech.is_sound() for speech in together)


def test_b_60_more_rows_than_slots_come_back_in_order(server: RunningServer):
    texts = TEXTS * 2

    together = server.speak(texts, SEED=list(range(16)), MAX_NEW_TOKENS=5)

    for row in (0, 7, 8, 15):
        assert together[row] == server.speak_one(texts[row], SEED=row, MAX_NEW_TOKENS=5)


def test_forty_mixed_requests_are_each_answered_once(server: RunningServer):
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("", {}, "TEXT: got ''"),
        ("hi", {"SEED": -2}, "SEED: got -2"),
        ("hi", {"SPEED": 10}, "SPEED: got 10"),
        ("hi", {"VOICE": "abc"}, "VOICE: got 'abc'"),
        ("hi", {"TEMPERATURE": 0.0}, "TEMPERATURE: got 0.0"),
    ]
    good = [(text, {"SEED": n, "MAX_NEW_TOKENS": 3 + n}, "") for n, text in enumerate(TEXTS)]
    expected = {text: server.speak_one(text, **options) for text, options, _ in good}
    requests = (good * 4)[:25] + wrong * 3
    random.Random(0).shuffle(requests)
    num_before = num_successes(server)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: answer(server, each[0], each[1]), requests))

    assert len(answers) == 40
    for got, (text, _, refusal) in zip(answers, requests, strict=True):
        if refusal:
            assert isinstance(got, Refusal)
            assert got.status == "INVALID_ARGUMENT"
            assert got.text.startswith(f"in ensemble 'chattts', preprocess: {refusal}")
        else:
            assert got == expected[text]
    assert num_successes(server) == num_before + 25


def answer(server: RunningServer, text: str, options: dict[str, Any]) -> Speech | Refusal:
    try:
        return server.speak_one(text, **options)
    except InferenceServerException as error:
        return refusal_of(error)


def num_successes(server: RunningServer) -> int:
    """Triton counts a call when it has let go of it, somewhat later than the answer comes."""
    count, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < SETTLED_S:
        statistics = server.client.get_inference_statistics("chattts").model_stats[0]
        if statistics.inference_stats.success.count != count:
            count, since_s = statistics.inference_stats.success.count, time.monotonic()
    return count
