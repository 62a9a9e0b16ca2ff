"""What a seed promises, through the real server."""

from __future__ import annotations

import pytest
from triton_calls import RunningServer

from chattts_triton.constants import num_audio_samples
from chattts_triton.sampling_params import MAX_SEED
from chattts_triton.serving.options import MAX_FRESH_SEED

TEXT = "你好，世界。"
CAP = 8


def test_b_30_the_same_seed_gives_the_same_bytes_and_another_one_others(server: RunningServer):
    first = server.speak_one(TEXT, SEED=42, MAX_NEW_TOKENS=CAP)
    again = server.speak_one(TEXT, SEED=42, MAX_NEW_TOKENS=CAP)
    other = server.speak_one(TEXT, SEED=43, MAX_NEW_TOKENS=CAP)

    assert again == first
    assert other.audio != first.audio


def test_b_31_three_seeds_give_three_waveforms(server: RunningServer):
    speeches = [server.speak_one(TEXT, SEED=seed, MAX_NEW_TOKENS=CAP) for seed in (1, 2, 3)]

    assert len({speech.audio for speech in speeches}) == 3


@pytest.mark.parametrize("options", [{}, {"SEED": -1}], ids=["left out", "minus one"])
def test_b_51_without_a_seed_each_call_differs_and_the_seed_used_reproduces_it(
    server: RunningServer, options: dict[str, int]
):
    speeches = [server.speak_one(TEXT, MAX_NEW_TOKENS=CAP, **options) for _ in range(2)]

    assert speeches[0].audio != speeches[1].audio
    for speech in speeches:
        assert 0 <= speech.seed <= MAX_FRESH_SEED
        assert server.speak_one(TEXT, SEED=speech.seed, MAX_NEW_TOKENS=CAP) == speech


def test_without_a_seed_the_rows_of_a_call_differ(server: RunningServer):
    speeches = server.speak([TEXT, TEXT, TEXT], MAX_NEW_TOKENS=CAP)

    assert len({speech.audio for speech in speeches}) == 3
    assert len({speech.seed for speech in speeches}) == 3


def test_in_a_call_one_row_may_ask_for_a_fresh_seed(server: RunningServer):
    fixed, fresh = server.speak([TEXT, TEXT], SEED=[5, -1], MAX_NEW_TOKENS=CAP)

    assert fixed == server.speak_one(TEXT, SEED=5, MAX_NEW_TOKENS=CAP)
    assert fresh.seed != 5
    assert fresh.audio != fixed.audio


def test_b_51_the_whole_range_of_seeds_is_used_as_it_is(server: RunningServer):
    seeds = [0, 2**31 - 1, 2**31, 2**32 - 2, 2**32 + 1, 2**53 + 2, MAX_SEED]

    speeches = server.speak([TEXT] * len(seeds), SEED=seeds, MAX_NEW_TOKENS=CAP)

    assert [speech.seed for speech in speeches] == seeds
    assert len({speech.audio for speech in speeches}) == len(seeds)
    assert server.speak_one(TEXT, SEED=MAX_SEED, MAX_NEW_TOKENS=CAP) == speeches[-1]


def test_seeds_that_agree_in_their_low_32_bits_give_the_same_audio(server: RunningServer):
    """As upstream's do: torch's generator on the CPU is seeded with 32 bits."""
    low = server.speak_one(TEXT, SEED=7, MAX_NEW_TOKENS=CAP)
    high = server.speak_one(TEXT, SEED=7 + 2**32, MAX_NEW_TOKENS=CAP)

    assert high.seed == 7 + 2**32
    assert high.audio == low.audio


@pytest.mark.parametrize("text", ["你好", "哈哈", "嗯", "你好，欢迎您的到来。", "Yes"])
def test_b_38_a_very_short_text_gives_finite_audio_within_its_cap(server: RunningServer, text: str):
    speech = server.speak_one(text, SEED=2)

    assert speech.is_sound()
    assert 256 <= len(speech.samples) <= num_audio_samples(28 * len(text) + 94)
