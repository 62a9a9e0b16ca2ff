"""Triton parameters and CHATTTS_ variables to one validated configuration."""

from __future__ import annotations

import os

import pytest

from chattts_triton.config import EngineConfig, VocoderConfig, num_threads, read_config
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
    ],
)
def test_a_wrong_parameter_is_named(parameters, message):
    with pytest.raises(ModelLoadError, match=message):
        read_config(EngineConfig, parameters, {})


def test_threads_default_to_the_cores_of_the_process():
    assert num_threads(3) == 3
    assert num_threads(0) == len(os.sched_getaffinity(0))


def test_one_variable_sets_the_threads_of_both_sessions():
    environment = {"CHATTTS_THREADS": "3"}

    assert read_config(EngineConfig, {}, environment).threads == 3
    assert read_config(VocoderConfig, {"threads": "1"}, environment).threads == 3
    with pytest.raises(ModelLoadError, match="parameter max_num_seqs: unknown, known are threads"):
        read_config(VocoderConfig, {"max_num_seqs": "1"}, environment)
