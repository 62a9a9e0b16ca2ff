"""A run in figures, as JSON and as a table."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest
from load_fakes import ScriptedSpeaker, run_jumping

from chattts_triton.errors import InvalidRequestError
from chattts_triton.load.capacity import Level
from chattts_triton.load.plan import LoadPlan
from chattts_triton.load.report import (
    LEVEL_HEADER,
    aligned,
    capacity_as_text,
    level_row,
    plan_as_json,
    summary_as_json,
    summary_as_text,
    takes_as_json,
)
from chattts_triton.load.run import LoadRun, run_load
from chattts_triton.load.summary import Spread, summarize
from chattts_triton.load.take import Failure
from chattts_triton.load.texts import TEXTS, read_texts

BROKEN = Failure("generation", "the graph gave NaN")
LATE = Failure("deadline_exceeded", "no end within 2 s")
FULL = Failure("overloaded", "the queue is full", is_refusal=True)
# The first chunk after half a second, the second one in time, the third half a second late.
DELAYS_S = [0.5, 1.0, 1.5]


def run_of(*failures: Failure | None, rate: float | None = None, cut: bool = False) -> LoadRun:
    speaker = ScriptedSpeaker(
        delays_s=lambda num_open: DELAYS_S,
        failures=deque(failures),
        finish_reason="length" if cut else "stop",
    )
    plan = LoadPlan(("a", "b"), len(failures), 1, rate, num_warmup=0, seed=20)
    return run_jumping(run_load(speaker, plan))


def test_percentiles_are_interpolated():
    spread = Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])

    assert spread == Spread(3.0, pytest.approx(4.8), pytest.approx(4.96), 5.0)
    assert Spread.of([]) is None


def test_the_figures_of_a_stream_are_those_of_its_chunks():
    summary = summarize(run_of(None, None), is_stream=True)

    assert (summary.num_requests, summary.num_answered, summary.num_failed) == (2, 2, 0)
    assert (summary.elapsed_s, summary.audio_s) == (6.0, 6.0)
    assert summary.audio_seconds_per_second == 1.0
    assert summary.latency_s == Spread(3.0, 3.0, 3.0, 3.0)
    assert summary.rtf == Spread(1.0, 1.0, 1.0, 1.0)
    assert summary.ttfa_s == Spread(0.5, 0.5, 0.5, 0.5)
    assert summary.gap_s is not None
    assert (summary.gap_s.p50, summary.gap_s.largest) == (1.25, 1.5)
    assert summary.underruns is not None
    assert (summary.underruns.count, summary.underruns.streams) == (2, 2)
    assert (summary.underruns.silence_s, summary.underruns.longest_s) == (1.0, 0.5)
    assert summary.modes == {"low_latency": 2}


def test_a_call_has_no_figures_of_chunks():
    summary = summarize(run_of(None), is_stream=False)

    assert (summary.ttfa_s, summary.gap_s, summary.underruns) == (None, None, None)
    assert summary.latency_s is not None


def test_failures_are_counted_by_kind_and_refusals_apart():
    summary = summarize(run_of(None, BROKEN, LATE, BROKEN, FULL), is_stream=True)

    assert summary.failures == {"deadline_exceeded": 1, "generation": 2}
    assert summary.messages == {"generation": BROKEN.message, "deadline_exceeded": LATE.message}
    assert (summary.num_answered, summary.num_refused, summary.num_failed) == (1, 1, 3)


def test_what_was_not_answered_to_its_end_is_in_no_figure():
    summary = summarize(run_of(BROKEN, FULL), is_stream=True)

    assert summary.audio_s == 0.0
    assert (summary.latency_s, summary.rtf, summary.ttfa_s, summary.gap_s) == (None,) * 4
    assert summary.underruns is not None
    assert summary.underruns.count == 0


def test_cut_audio_is_answered_and_counted():
    summary = summarize(run_of(None, BROKEN, cut=True), is_stream=True)

    assert (summary.num_answered, summary.num_cut) == (1, 1)


def test_the_json_holds_every_request():
    run = run_of(None, BROKEN)

    report = json.loads(json.dumps(takes_as_json(run, is_stream=True)))

    whole, broken = report
    assert (whole["index"], whole["text"], whole["seed"], broken["seed"]) == (0, 0, 20, 21)
    assert (whole["latency_s"], whole["ttfa_s"], whole["rtf"]) == (3.0, 0.5, 1.0)
    assert whole["chunks"][0] == {"at_s": 0.5, "samples": 24_000}
    assert whole["underruns_samples"] == [12_000]
    assert whole["failure"] is None
    assert broken["failure"] == {
        "kind": "generation", "message": BROKEN.message, "is_refusal": False
    }  # fmt: skip
    assert broken["planned_s"] == 3.0
    assert "rtf" not in broken


def test_the_json_of_calls_has_no_chunks():
    (call,) = takes_as_json(run_of(None), is_stream=False)

    assert "chunks" not in call
    assert "ttfa_s" not in call


def test_the_json_tells_what_was_asked():
    run = run_of(None, rate=0.5)

    plan = plan_as_json(run.plan)
    figures = json.loads(json.dumps(summary_as_json(summarize(run, is_stream=True))))

    assert (plan["loop"], plan["rate_per_s"], plan["concurrency"]) == ("open", 0.5, 1)
    assert (plan["requests"], plan["warmup"], plan["seed"], plan["texts"]) == (1, 0, 20, 2)
    assert plan_as_json(LoadPlan(("a", "c"), 1, 1))["texts_sha256"] != plan["texts_sha256"]
    assert figures["ttfa_s"]["p50"] == pytest.approx(0.5)
    assert figures["num_failed"] == 0


def test_the_table_of_a_run_is_read_by_people():
    run = run_of(None, BROKEN, FULL, BROKEN)

    text = summary_as_text(run.plan, summarize(run, is_stream=True))

    assert text == (
        "closed loop, 1 at a time: 4 requests in 12.00 s, 0 before them dropped\n"
        "\n"
        "answered  1\n"
        "cut       0\n"
        "refused   1\n"
        "failed    2 generation\n"
        "audio     3.00 s, 0.25 s a second\n"
        "modes     1 low_latency\n"
        "\n"
        "           median    p95    p99  largest\n"
        "latency s   3.000  3.000  3.000    3.000\n"
        "RTF         1.000  1.000  1.000    1.000\n"
        "TTFA s      0.500  0.500  0.500    0.500\n"
        "gap s       1.250  1.475  1.495    1.500\n"
        "\n"
        "under-runs: 1 in 1 of 1 streams, 0.500 s of silence, the longest 0.500 s\n"
        "generation: the graph gave NaN\n"
    )


def test_the_table_of_calls_at_a_rate_has_no_chunks():
    run = run_of(FULL, rate=0.5)

    text = summary_as_text(run.plan, summarize(run, is_stream=False))

    assert text.startswith("open loop, 0.5 a second, at most 1 at a time: 1 requests in ")
    assert "latency s       -    -    -        -\n" in text
    assert "failed    0\n" in text
    assert "TTFA" not in text
    assert "under-runs" not in text


def test_streams_without_a_silence_say_so():
    run = run_jumping(run_load(ScriptedSpeaker(), LoadPlan(("a",), 2, 2)))

    assert "under-runs: none in 2 streams" in summary_as_text(
        run.plan, summarize(run, is_stream=True)
    )


def test_the_table_of_a_search_has_a_row_for_each_level():
    level = Level(1, summarize(run_of(None, BROKEN), is_stream=True))
    refused = Level(2, summarize(run_of(FULL), is_stream=True))

    assert level_row(level) == ["1", "2", "1", "0.500", "0.500", "0.50", "0", "1"]
    assert level_row(refused)[4] == "-"
    text = capacity_as_text(3, [level, refused])
    assert text.splitlines()[:3] == aligned([LEVEL_HEADER, level_row(level), level_row(refused)])
    assert "generation: the graph gave NaN\n" in text
    assert text.endswith("capacity: 3 streams at a time without an under-run\n")


def test_the_texts_that_are_shipped_are_chinese_and_english():
    chinese = [text for text in TEXTS if any("\u4e00" <= letter <= "\u9fff" for letter in text)]

    assert len(TEXTS) == len(set(TEXTS))
    assert 2 * len(chinese) == len(TEXTS)
    assert np.ptp([len(text) for text in TEXTS]) > 50  # short ones and long ones


def test_a_file_of_texts_has_one_a_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("你好。\r\n\n  Good morning. \n".encode())

    assert read_texts(path) == ("你好。", "Good morning.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\n \n", "got 'no text', wanted one text a line"),
        (b"ok\n\xff\xfe", r"got b'\\xff\\xfe', wanted UTF-8"),
    ],
)
def test_a_file_without_texts_is_refused(tmp_path, content, message):
    path = tmp_path / "texts.txt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidRequestError, match=message) as caught:
        read_texts(path)

    assert str(caught.value).startswith(f"texts {path}: ")
