"""KV slots take memory as they fill, and none while nobody runs."""

from __future__ import annotations

import numpy as np
import psutil
from fakes import DIMS, FakeModelRunner, make_engine, make_sequence, run_until_idle

from chattts_triton.engine.kv_cache import HostKVCache

NUM_SLOTS, MAX_LEN = 16, 65_536  # of 8 values: 2 buffers of 33.6 MB
SLOT_BYTES = 2 * MAX_LEN * 8 * 4


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def fill(cache: HostKVCache, slots: int, positions: int) -> None:
    for buffer in cache._buffers.values():
        buffer[:slots, :, :positions] = 1.0


def test_memory_is_taken_as_slots_fill_and_given_back():
    before = resident_bytes()
    cache = HostKVCache(DIMS, NUM_SLOTS, MAX_LEN, np.float32)
    assert resident_bytes() - before < SLOT_BYTES

    fill(cache, NUM_SLOTS, MAX_LEN // 64)
    assert resident_bytes() - before < NUM_SLOTS * SLOT_BYTES // 16
    fill(cache, NUM_SLOTS, MAX_LEN)
    assert resident_bytes() - before > NUM_SLOTS * SLOT_BYTES // 2
    cache.give_back()

    assert resident_bytes() - before < SLOT_BYTES
    fill(cache, 1, 8)
    cache.move(0, 1, 8)
    (key, value) = cache._buffers.values()
    assert (key[1, :, :8] == 1.0).all()
    assert (value[1, :, 8:] == 0.0).all()


def test_the_engine_gives_memory_back_when_nobody_runs_and_only_then():
    runner = FakeModelRunner()
    engine, finished = make_engine(runner), []
    engine.add_request([make_sequence(5, finished), make_sequence(9, finished)])
    while len(finished) < 2:
        assert runner.kv_cache.num_rests == 0
        engine.step()

    assert runner.kv_cache.num_rests == 1
    engine.add_request([make_sequence(5, finished)])
    run_until_idle(engine)
    assert np.array_equal(finished[-1].tokens, finished[0].tokens)
