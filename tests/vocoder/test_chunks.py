"""Sizes of chunks."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chattts_triton.errors import ModelLoadError
from chattts_triton.vocoder.chunks import ChunkSchedule


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        ((12, 150, 96), [12, 18, 27, 41, 62, 93, 96, 96]),
        ((1, 150, 6), [1, 2, 3, 5, 6, 6, 6, 6]),
        ((10, 110, 100), [10, 11, 13, 15, 17, 19, 21, 24]),
        ((7, 100, 50), [7] * 8),
        ((5, 1000, 5), [5] * 8),
    ],
)
def test_each_chunk_grows_by_the_percentage_rounded_up_until_the_largest(schedule, sizes):
    assert list(islice(ChunkSchedule(*schedule).sizes(), len(sizes))) == sizes


@given(
    first=st.integers(1, 60), growth_percent=st.integers(101, 1000), more_codes=st.integers(0, 200)
)
def test_sizes_grow_at_every_chunk_until_the_largest(first, growth_percent, more_codes):
    schedule = ChunkSchedule(first, growth_percent, first + more_codes)

    sizes = list(islice(schedule.sizes(), 300))

    assert sizes[0] == first
    assert all(a < b or a == b == schedule.max_codes for a, b in pairwise(sizes))
    assert sizes[-1] == schedule.max_codes


def test_every_segment_has_the_same_sizes():
    schedule = ChunkSchedule(3, 150, 20)

    assert list(islice(schedule.sizes(), 9)) == list(islice(schedule.sizes(), 9))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ((0, 150, 96), "first_codes: got 0, wanted 1 to 2048"),
        ((2049, 150, 2049), "first_codes: got 2049, wanted 1 to 2048"),
        ((12, 99, 96), "growth_percent: got 99, wanted 100 to 1000"),
        ((12, 1001, 96), "growth_percent: got 1001, wanted 100 to 1000"),
        ((12, 150, 11), "max_codes: got 11, wanted 12 to 2048"),
        ((12, 150, 2049), "max_codes: got 2049, wanted 12 to 2048"),
    ],
)
def test_a_schedule_out_of_range_is_refused_with_name_value_and_range(schedule, message):
    with pytest.raises(ModelLoadError, match=f"^{message}$"):
        ChunkSchedule(*schedule)
