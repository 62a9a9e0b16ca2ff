"""Upstream as the benchmarks serve it: a real `Chat` behind the app, asked over HTTP."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sides import order, upstream_side

from chattts_triton.constants import SAMPLE_RATE_HZ, num_audio_samples
from chattts_triton.errors import ServerStartError

TEXT = "你好。"
NUM_CODES = 40
WAIT_S = 20.0


def test_every_request_is_spoken_in_as_many_steps_as_were_asked_for(tiny_checkpoint: Path) -> None:
    full_s = num_audio_samples(NUM_CODES) / SAMPLE_RATE_HZ

    with upstream_side(tiny_checkpoint, TEXT, NUM_CODES) as side, ThreadPoolExecutor(4) as pool:
        durations_s = list(pool.map(side.speak, range(4)))
        again = [order(side.url, TEXT, seed, NUM_CODES) for seed in (7, 7, 8)]

    # It drops the samples next to zero, of which random weights make few.
    assert all(0.95 * full_s < duration_s <= full_s for duration_s in durations_s)
    assert again[0].tolist() == again[1].tolist()
    assert again[0].tolist() != again[2].tolist()
    assert side.cold_start_s > 0


def test_an_app_that_is_told_to_end_does_not_finish_what_it_speaks(tiny_checkpoint: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with upstream_side(tiny_checkpoint, TEXT, NUM_CODES) as side:
            process = psutil.Process(side.pid)
            idle_s = process.cpu_times().user
            speaking = pool.submit(order, side.url, TEXT, 1, 2048)
            # It tells nobody that it has begun.
            while process.cpu_times().user < idle_s + 0.2:
                assert not speaking.done()
                time.sleep(0.01)

        assert isinstance(speaking.exception(WAIT_S), ConnectionError)


def test_an_app_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerStartError, match="upstream_app: ended with status 1"),
        upstream_side(tmp_path / "nothing", TEXT, NUM_CODES),
    ):
        raise AssertionError
