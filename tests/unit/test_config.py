"""Triton parameters and CHATTTS_ variables to one validated configuration."""

from __future__ import annotations

import os

import pytest

from chattts_triton.config import (
    EngineConfig,
    StreamConfig,
    VocoderConfig,
    num_threads,
    read_config,
)
from chattts_triton.constants import num_audio_samples
from chattts_triton.errors import ModelLoadError


def test_defaults_hold_where_nothing_is_said():
    assert read_config(EngineConfig, {}, {}) == EngineConfig()


def test_a_variable_wins_over_a_parameter():
    config = read_config(
        EngineConfig,
        {"max_num_seqs": "4", "exact_batching": "false", "max_waiting": "9"},
        {"CHATTTS_MAX_NUM_SEQS": "2", "CHATTTS_EXACT_BATCHING": "1", "OTHER": "x"},
    )

    assert config == EngineConfig(max_num_seqs=2, exact_batching=True, max_waiting=9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_seqs": "4"}, "parameter max_seqs: unknown, known are max_num_seqs, max_waiting"),
        ({"max_num_seqs": "four"}, "parameter max_num_seqs: got 'four', wanted a whole number"),
        ({"max_num_seqs": "0"}, "parameter max_num_seqs: got 0, wanted 1 to 1024"),
        ({"max_waiting": "-1"}, "parameter max_waiting: got -1"),
        ({"max_queue_delay_us": "1e3"}, "parameter max_queue_delay_us: got '1e3'"),
        ({"exact_batching": "yes"}, "parameter exact_batching: got 'yes', wanted true or false"),
        ({"threads": "-2"}, "parameter threads: got -2"),
        ({"default_timeout_ms": "0"}, "parameter default_timeout_ms: got 0, wanted 1 to 86400000"),
        ({"default_timeout_ms": "86400001"}, "parameter default_timeout_ms: got 86400001"),
        ({"stream_idle_timeout_ms": "0"}, "parameter stream_idle_timeout_ms: got 0, wanted 1 to"),
    ],
)
def test_a_wrong_parameter_is_named(parameters, message):
    with pytest.raises(ModelLoadError, match=message):
        read_config(EngineConfig, parameters, {})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"first_chunk_codes": "0"}, "parameter first_chunk_codes: got 0, wanted 1 to 2048"),
        (
            {"first_chunk_codes": "40", "max_chunk_codes": "39"},
            "parameter max_chunk_codes: got 39, wanted 40 to 2048",
        ),
        (
            {"first_quality_chunk_codes": "40", "max_chunk_codes": "39"},
            "parameter max_chunk_codes: got 39, wanted 40 to 2048",
        ),
        ({"chunk_growth_percent": "99"}, "parameter chunk_growth_percent: got 99, wanted 100 to"),
        ({"look_ahead_codes": "0"}, "parameter look_ahead_codes: got 0, wanted 1 to 52"),
        ({"look_ahead_codes": "53"}, "parameter look_ahead_codes: got 53, wanted 1 to 52"),
        ({"cross_fade_samples": "-1"}, "parameter cross_fade_samples: got -1, wanted 0 to"),
        (
            {"cross_fade_samples": "3841", "look_ahead_codes": "8"},
            "parameter cross_fade_samples: got 3841, wanted 0 to 3840",
        ),
        ({"max_streams": "0"}, "parameter max_streams: got 0, wanted 1 to 1024"),
        ({"auto_first_audio_ms": "-1"}, "parameter auto_first_audio_ms: got -1"),
        ({"default_timeout_ms": "0"}, "parameter default_timeout_ms: got 0, wanted 1 to 86400000"),
        ({"threads": "1"}, "parameter threads: unknown, known are first_chunk_codes, "),
    ],
)
def test_a_wrong_parameter_of_a_stream_is_named(parameters, message):
    with pytest.raises(ModelLoadError, match=message):
        read_config(StreamConfig, parameters, {})


@pytest.mark.parametrize("look_ahead_codes", [1, 8, 52])
def test_a_cross_fade_is_no_longer_than_the_audio_of_the_look_ahead(look_ahead_codes):
    longest = num_audio_samples(look_ahead_codes)

    StreamConfig(look_ahead_codes=look_ahead_codes, cross_fade_samples=longest)
    with pytest.raises(ModelLoadError, match="cross_fade_samples"):
        StreamConfig(look_ahead_codes=look_ahead_codes, cross_fade_samples=longest + 1)


def test_one_variable_sets_the_default_timeout_of_calls_and_of_streams():
    environment = {"CHATTTS_DEFAULT_TIMEOUT_MS": "5000"}

    assert read_config(EngineConfig, {}, environment).default_timeout_ms == 5000
    assert read_config(StreamConfig, {}, environment).default_timeout_ms == 5000


def test_threads_default_to_the_cores_of_the_process():
    assert num_threads(3) == 3
    assert num_threads(0) == len(os.sched_getaffinity(0))


def test_one_variable_sets_the_threads_of_both_sessions():
    environment = {"CHATTTS_THREADS": "3"}

    assert read_config(EngineConfig, {}, environment).threads == 3
    assert read_config(VocoderConfig, {"threads": "1"}, environment).threads == 3
    with pytest.raises(ModelLoadError, match="parameter max_num_seqs: unknown, known are threads"):
        read_config(VocoderConfig, {"max_num_seqs": "1"}, environment)
