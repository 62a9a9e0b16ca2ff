"""What would take too much memory or time is refused before it costs any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from triton_calls import RunningServer, text_tensors


def gpt_inputs(server: RunningServer, **changes: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = server.call("preprocess", text_tensors("你好", SEED=1))
    del inputs["SEED_USED"], inputs["TRIM"], inputs["PAUSE_SAMPLES"]
    inputs["MAX_NEW_CODES"] = np.asarray([[2]], dtype=np.int32)
    return inputs | changes


def int32(*rows: list[int]) -> np.ndarray:
    return np.asarray(rows, dtype=np.int32)


def strings(text: bytes) -> np.ndarray:
    return np.asarray([[text]], dtype=np.object_)


def test_one_long_text_among_many_short_ones_is_refused(server: RunningServer):
    """Every row of the answer is as long as the longest."""
    refusal = server.refused(["字" * 5000, *["好"] * 63])

    assert refusal.status == "INVALID_ARGUMENT"
    assert "preprocess: TEXT: got 64 rows of up to " in refusal.text
    assert "send long texts in calls of their own" in refusal.text
    server.assert_alive()


def test_more_segments_than_could_ever_wait_are_refused(server: RunningServer):
    refusal = server.refused(["字" * 5000] * 3, MAX_NEW_TOKENS=1)

    assert refusal.status == "INVALID_ARGUMENT"
    assert "gpt: TEXT: got " in refusal.text
    assert "wanted at most 264 segments in one call" in refusal.text
    server.assert_alive()


WRONG_GPT_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"WARNINGS": strings(b"no JSON")}, "WARNINGS: got 'no JSON', wanted a JSON list of codes"),
    ({"WARNINGS": strings(b'{"a": 1}')}, "WARNINGS: got "),
    ({"SPEED": int32([99])}, "SPEED: got 99, wanted 0 to 9"),
    ({"PROMPT_TEXT": strings(b"a" * 50_000)}, "PROMPT_TEXT: got 50000 bytes, wanted at most"),
    ({"SEGMENT_TEXT": strings(b"a" * 50_000)}, "SEGMENT_TEXT: got 50000 bytes, wanted at most"),
    ({"NUM_TEXT_IDS": int32([3, 0, 2])}, "NUM_TEXT_IDS: got [3, 0, 2], wanted 1 to 6"),
    (
        {"PROMPT_CODES": np.zeros((1, 2, 3), np.int32), "NUM_PROMPT_CODES": int32([2])},
        "PROMPT_CODES: got 3, wanted 4 codes a step",
    ),
    (
        {"MAX_NEW_CODES": int32([200_000, 100_000])},
        "MAX_NEW_CODES: got 1 rows of up to 300000 steps, wanted at most 262144",
    ),
    (
        {"TEXT_IDS": int32([1] * 3000), "NUM_TEXT_IDS": int32([1] * 3000)},
        "TEXT: got 3000, wanted at most 264 segments in one call",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_GPT_INPUTS, ids=lambda case: str(case)[:40])
def test_gpt_refuses_what_would_fail_or_block_its_steps(
    server: RunningServer, changes: dict[str, Any], message: str
):
    refusal = server.refusal("gpt", gpt_inputs(server, **changes))

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"gpt: {message}")
    server.assert_alive()


def decoder_inputs(num_codes: list[int], **changes: Any) -> dict[str, Any]:
    return {
        "HIDDENS": np.zeros((1, sum(num_codes), 768), dtype=np.float32),
        "NUM_CODES": int32(num_codes),
        "SEED": np.asarray([[1]], dtype=np.int64),
        **changes,
    }


WRONG_DECODER_INPUTS: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: decoder_inputs([2049]), "NUM_CODES: got 2049, wanted 1 to 2048 a segment"),
    (
        lambda: decoder_inputs([1] * 2000, PAUSE_SAMPLES=int32([120_000] * 2000)),
        "NUM_CODES: got 1 rows of up to 470750 steps",
    ),
    (
        lambda: decoder_inputs([1], PAUSE_SAMPLES=int32([120_001])),
        "PAUSE_SAMPLES: got [120001], wanted 0 to 120000 for each of 1 segments",
    ),
    (lambda: decoder_inputs([1], PAUSE_SAMPLES=int32([-1])), "PAUSE_SAMPLES: got [-1]"),
    (lambda: decoder_inputs([1, 1], PAUSE_SAMPLES=int32([5])), "PAUSE_SAMPLES: got [5]"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG_DECODER_INPUTS)
def test_vocos_decoder_refuses_what_would_take_too_much_memory(
    server: RunningServer, inputs: Callable[[], dict[str, Any]], message: str
):
    refusal = server.refusal("vocos_decoder", inputs())

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith(f"vocos_decoder: {message}")
    server.assert_alive()


def test_a_deadline_names_the_requests_own_timeout_also_after_a_refinement(server: RunningServer):
    tensors = text_tensors("你好，世界。", SEED=42, REFINE=True)

    refusal = server.refusal("chattts", tensors, timeout_us=60_000)

    assert refusal.status == "CANCELLED"
    assert "gpt: deadline of 60 ms exceeded after " in refusal.text
    server.assert_alive()
