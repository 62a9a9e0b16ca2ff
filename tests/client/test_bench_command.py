"""`chattts-triton bench` against a gRPC server that plays Triton."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_triton import FakeTriton

from chattts_triton.cli.bench_options import DEFAULT_REQUESTS
from chattts_triton.cli.main import main

Bench = Callable[..., int]
FULL = (grpc.StatusCode.UNAVAILABLE, "in ensemble 'chattts', gpt: 272 sequences are waiting")
FAULT = (grpc.StatusCode.INTERNAL, "in ensemble 'chattts', gpt: the step failed")


@pytest.fixture
def bench(triton: FakeTriton) -> Bench:
    return lambda *args: main(["bench", *map(str, args), "--url", triton.url])


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def test_calls_are_measured_and_written(
    bench: Bench, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"

    status = bench("--concurrency", 2, "--requests", 5, "--warmup", 3, "--seed", 9, "--json", path)

    report = report_of(path)
    assert status == 0
    assert len(triton.requests) == 8
    assert (report["kind"], report["loop"], report["concurrency"]) == ("call", "closed", 2)
    assert (report["num_answered"], report["num_failed"], report["num_refused"]) == (5, 0, 0)
    assert [take["seed"] for take in report["takes"]] == [9, 10, 11, 12, 13]
    assert report["ttfa_s"] is None
    assert report["latency_s"]["p50"] > 0
    assert capsys.readouterr().out.startswith("closed loop, 2 at a time: 5 requests in ")


def test_streams_are_measured_chunk_by_chunk(
    bench: Bench, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"

    status = bench("--stream", "--mode", "quality", "--requests", 3, "--json", path)

    report = report_of(path)
    assert status == 0
    assert report["modes"] == {"quality": 3}
    assert all(len(take["chunks"]) > 1 for take in report["takes"])
    assert report["underruns"]["streams"] <= 3
    assert "under-runs: " in capsys.readouterr().out


def test_without_options_one_caller_makes_the_usual_number_of_requests(
    bench: Bench, triton: FakeTriton
):
    assert bench() == 0
    assert len(triton.requests) == 1 + DEFAULT_REQUESTS


def test_an_open_loop_is_measured(bench: Bench, tmp_path: Path):
    path = tmp_path / "bench.json"

    status = bench(
        "--rate", 200, "--concurrency", 4, "--requests", 6, "--warmup", 0, "--json", path
    )

    report = report_of(path)
    planned_s = [take["planned_s"] for take in report["takes"]]
    assert status == 0
    assert (report["loop"], report["rate_per_s"], report["concurrency"]) == ("open", 200.0, 4)
    assert planned_s == sorted(set(planned_s))
    assert all(take["began_s"] >= take["planned_s"] for take in report["takes"])


def test_the_texts_of_a_file_are_spoken_in_turns(bench: Bench, triton: FakeTriton, tmp_path: Path):
    texts = tmp_path / "texts.txt"
    texts.write_text("一。\n二。\n", encoding="utf-8")

    assert bench("--texts", texts, "--requests", 3, "--warmup", 0, "--voice", "alder") == 0

    spoken = [request.raw_input_contents[0][4:].decode() for request in triton.requests]
    assert spoken == ["一。", "二。", "一。"]
    assert triton.last_inputs["VOICE"][2] == [b"alder"]


def test_a_failure_is_status_1(
    bench: Bench, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"
    triton.refusal = FAULT

    assert bench("--requests", 2, "--warmup", 0, "--json", path) == 1

    assert report_of(path)["failures"] == {"generation": 2}
    out = capsys.readouterr().out
    assert "failed    2 generation\n" in out
    assert "generation: in ensemble 'chattts', gpt: the step failed\n" in out


def test_refusals_are_counted_and_are_no_failures(bench: Bench, triton: FakeTriton, tmp_path: Path):
    path = tmp_path / "bench.json"
    triton.refusal = FULL

    assert bench("--requests", 2, "--json", path) == 0

    report = report_of(path)
    assert (report["num_refused"], report["num_failed"], report["num_answered"]) == (2, 0, 0)


def test_a_warm_up_that_fails_is_one_line(
    bench: Bench, triton: FakeTriton, capsys: pytest.CaptureFixture[str]
):
    triton.refusal = FAULT

    assert bench("--requests", 100) == 1

    out, err = capsys.readouterr()
    assert len(triton.requests) == 1
    assert out == ""
    assert err.startswith("chattts-triton bench: warm-up: generation: ")
    assert err.count("\n") == 1


def test_the_capacity_is_searched_and_written(
    bench: Bench, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bench.json"
    triton.stream_steps = lambda inputs: [FULL]

    assert bench("--find-capacity", "--requests", 1, "--concurrency", 4, "--json", path) == 0

    report = report_of(path)
    out, err = capsys.readouterr()
    assert report["capacity"] == 0
    assert [level["concurrency"] for level in report["levels"]] == [4, 2, 1]
    assert "4 streams at a time: does not hold\n" in err
    assert out.endswith("capacity: 0 streams at a time without an under-run\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "quality"], "--mode: only with --stream or --find-capacity"),
        (["--rate", "2", "--find-capacity"], "--rate: not with --find-capacity"),
        (["--concurrency", "0"], "concurrency: got 0, wanted 1 to 1024"),
        (["--requests", "0"], "requests: got 0, wanted 1 to 1000000"),
        (["--warmup", "-1"], "warmup: got -1, wanted 0 to 1000000"),
        (["--seed", "-1"], "seed: got -1, wanted 0 to "),
        (["--rate", "0"], "--rate: got '0', wanted a number above 0"),
        (["--rate", "nan"], "--rate: got 'nan', wanted a number above 0"),
        (["--timeout-s", "soon"], "--timeout-s: got 'soon', wanted a number above 0"),
        (["--url", "nowhere"], "--url: got 'nowhere', wanted HOST:PORT or http://HOST:PORT"),
        (["--url", "host:99999"], "--url: got 'host:99999', wanted HOST:PORT or "),
        (["--url", "ftp://host:1"], "--url: got 'ftp://host:1', wanted HOST:PORT or "),
        (["--url", "http://host:1/v1"], "--url: got 'http://host:1/v1', wanted HOST:PORT or "),
        (["--mode", "loud", "--stream"], "--mode: invalid choice: 'loud'"),
    ],
)
def test_wrong_use_is_status_2_and_asks_nobody(
    triton: FakeTriton, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--url", triton.url, *arguments])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert triton.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "nowhere/bench.json"], "cannot write nowhere/bench.json: no directory"),
        (["--texts", "nowhere.txt"], "texts nowhere.txt: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_before_any_request(
    bench: Bench,
    triton: FakeTriton,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    assert bench(*arguments) == 1

    err = capsys.readouterr().err
    assert err.startswith(f"chattts-triton bench: {message}")
    assert err.count("\n") == 1
    assert triton.requests == []


def test_without_a_server_it_is_one_line(triton: FakeTriton, capsys: pytest.CaptureFixture[str]):
    triton.is_model_loaded = False

    assert main(["bench", "--url", triton.url]) == 1

    err = capsys.readouterr().err
    assert err.startswith(f"chattts-triton bench: {triton.url}: no server, or it has no model")


def test_without_the_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "chattts_client", None)

    assert main(["bench"]) == 1

    assert "run `pip install ./client`" in capsys.readouterr().err
