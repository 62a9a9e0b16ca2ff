"""The parts of the benchmarks that can be held against something without any load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frameworks
import httpx2
import numpy as np
import perf_report
import plots
import psutil
import pytest
import quick
import side_by_side
import side_by_side_tables
import stages
from closed_loop import Cell, NotSpokenError, lasting_seeds, run_cell
from floor import read_bandwidth, session_over_floor, weight_bytes
from memory import PeakMemory, pss_mb
from steps import Times
from upstream_app import create_app

from chattts_triton.config import MAX_MODEL_LEN
from chattts_triton.constants import SAMPLE_RATE_HZ, num_audio_samples
from chattts_triton.export.standin import SIZES
from chattts_triton.manifest import load_manifest
from chattts_triton.tensors import CHATTTS

ROOT = Path(__file__).parents[2]
WAIT_S = 20.0

# What scripts outside this repository read of `make bench-quick`.
QUICK_KEYS = {
    "steps_ratio_fp32",
    "steps_ratio_int8",
    "steps_ratio_int8_fast",
    "steps_ratio_fp32_b8",
    "throughput_ratio_16",
    "ttfa_ratio",
    "step_over_session",
    "session_over_floor_int8",
    "pss_mb_int8",
}

REPORT = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute \
Input,Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,\
p99 latency,request/response,response wait
2,1.5,11,1159414,2,337,5473,870,7,1144757,2665963,2665963,2683364,18,1166077
"""


def nothing() -> None:
    """Nobody waits."""


# Callers


def test_a_cell_counts_whole_requests_and_ends_with_the_last_of_them() -> None:
    cell = run_cell(lambda seed: 2.0, [1, 2], concurrency=3, seconds=0.05, drop_waiting=nothing)

    assert cell.audio_s == 2.0 * len(cell.latencies_s)
    assert len(cell.latencies_s) >= 3
    assert cell.audio_seconds_per_second == cell.audio_s / cell.elapsed_s


def test_the_seeds_of_a_cell_are_taken_in_turns() -> None:
    seen: list[int] = []

    run_cell(lambda seed: float(seen.append(seed) or 1), [7, 8, 9], 1, 0.2, nothing)

    assert seen[:4] == [7, 8, 9, 7]


def test_what_still_waits_when_the_time_is_over_does_not_count() -> None:
    turn, is_dropped = threading.Lock(), threading.Event()

    def speak(seed: int) -> float:
        with turn:
            if is_dropped.is_set():
                raise NotSpokenError
            assert is_dropped.wait(WAIT_S)
            return 1.0

    cell = run_cell(speak, [1], concurrency=4, seconds=0.02, drop_waiting=is_dropped.set)

    assert len(cell.latencies_s) == 1
    assert cell.num_dropped == 3
    assert cell.elapsed_s >= 0.02


def test_a_caller_that_fails_fails_the_cell_at_once() -> None:
    def speak(seed: int) -> float:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run_cell(speak, [1], concurrency=2, seconds=WAIT_S, drop_waiting=nothing)


def test_percentiles_are_those_of_numpy() -> None:
    latencies_s = (4.0, 1.0, 3.0, 2.0)

    cell = Cell(1, 1.0, 1.0, latencies_s)

    assert cell.latency_s(50) == 2.5
    assert cell.latency_s(95) == np.percentile(latencies_s, 95)


def test_seeds_that_end_early_are_passed_over() -> None:
    full_s = num_audio_samples(50) / SAMPLE_RATE_HZ

    seeds = lasting_seeds(lambda seed: full_s if seed % 3 == 0 else full_s / 2, 50, count=7)

    assert seeds == [0, 3, 6, 9, 12, 15, 18]


def test_too_few_lasting_seeds_are_an_error() -> None:
    with pytest.raises(LookupError, match="seeds: 0 of 320 reach 50 steps, wanted 2"):
        lasting_seeds(lambda seed: 0.1, 50, count=2)


# Upstream's app


async def post(client: httpx2.AsyncClient, seed: int) -> httpx2.Response:
    return await client.post("/speech", json={"text": "好", "seed": seed, "num_codes": 5})


def with_app(
    speak: Callable[[str, int, int], Any], calls: Callable[[httpx2.AsyncClient], Any]
) -> Any:
    """What some calls to the app return, within one event loop."""

    async def run() -> Any:
        transport = httpx2.ASGITransport(app=create_app(speak))
        async with httpx2.AsyncClient(transport=transport, base_url="http://app") as client:
            return await asyncio.wait_for(calls(client), WAIT_S)

    return asyncio.run(run())


def test_upstreams_app_gives_the_samples_of_what_was_asked_for() -> None:
    def speak(text: str, seed: int, num_codes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray([len(text), seed, num_codes], dtype=np.float32)

    answer = with_app(speak, lambda client: post(client, 7))

    assert np.frombuffer(answer.content, dtype=np.float32).tolist() == [1, 7, 5]


def test_upstreams_app_speaks_one_request_at_a_time() -> None:
    turn = threading.Lock()

    def speak(text: str, seed: int, num_codes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        assert turn.acquire(blocking=False)
        turn.release()
        return np.zeros(1, dtype=np.float32)

    answers = with_app(speak, lambda client: asyncio.gather(*(post(client, i) for i in range(8))))

    assert {answer.status_code for answer in answers} == {200}


def test_upstreams_app_drops_what_waits_and_finishes_what_it_speaks() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def speak(text: str, seed: int, num_codes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        has_begun.set()
        assert may_end.wait(WAIT_S)
        return np.zeros(1, dtype=np.float32)

    async def calls(client: httpx2.AsyncClient) -> list[int]:
        first = asyncio.create_task(post(client, 1))
        assert await asyncio.to_thread(has_begun.wait, WAIT_S)
        waiting = asyncio.create_task(post(client, 2))
        await asyncio.sleep(0)  # it takes its place in the queue
        await client.post("/drop-waiting")
        may_end.set()
        late = await post(client, 3)
        return [(await first).status_code, (await waiting).status_code, late.status_code]

    assert with_app(speak, calls) == [200, 503, 200]


@pytest.mark.parametrize("wrong", [{"text": ""}, {"seed": -1}, {"num_codes": 0}])
def test_upstreams_app_refuses_a_wrong_request(wrong: dict[str, object]) -> None:
    body = {"text": "好", "seed": 1, "num_codes": 5} | wrong

    answer = with_app(lambda *_: pytest.fail("spoken"), lambda it: it.post("/speech", json=body))

    assert answer.status_code == 422
    assert next(iter(wrong)) in answer.text


# Ratios and floors


def test_a_ratio_of_steps_is_taken_pair_by_pair() -> None:
    drifting = Times(upstream=[10.0, 40.0, 20.0], ours=[2.0, 8.0, 5.0])

    assert drifting.steps_ratio == 5.0


def test_the_floor_is_the_time_to_read_the_weights_once() -> None:
    assert session_over_floor(0.010, num_bytes=200_000_000, bytes_per_second=40e9) == 2.0


def test_the_weights_of_a_step_are_those_of_the_graph_of_gpt(
    tiny_repositories: dict[str, Path],
) -> None:
    repository = tiny_repositories["int8"]

    num_bytes = weight_bytes(load_manifest(repository))

    assert num_bytes == sum(path.stat().st_size for path in repository.rglob("gpt.onnx.data"))
    assert num_bytes > 0


def test_a_bandwidth_is_at_least_that_of_a_disk() -> None:
    assert read_bandwidth(threads=2, num_bytes=1 << 22) > 100e6


def test_the_peak_of_memory_holds_what_a_child_takes() -> None:
    program = "import sys; x = bytearray(80_000_000); print(len(x), flush=True); sys.stdin.read()"
    before_mb = pss_mb(psutil.Process())

    with (
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child,
        PeakMemory(os.getpid()) as memory,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        memory.look()
        child.communicate()

    assert memory.peak_mb > before_mb + 75


def test_what_the_stages_do_not_explain_is_the_rest_and_never_below_nothing() -> None:
    found = {name: 1.0 for name in side_by_side_tables.STAGES if name != "rest"}

    assert stages.with_rest(found, 8.5)["rest"] == 2.5
    assert stages.with_rest(found, 5.0)["rest"] == 0.0
    assert list(stages.with_rest(found, 8.5)) == list(side_by_side_tables.STAGES)


# Reports


def test_the_short_form_has_the_keys_that_others_read() -> None:
    assert set(quick.KEYS) == QUICK_KEYS


def test_the_table_of_the_short_form_has_a_row_for_each_key() -> None:
    head = {"command": "python benchmarks/quick.py", "date": "2026-01-01", "machine": "one"}

    lines = quick.as_table({**head, **dict.fromkeys(quick.KEYS, 1.5)}).splitlines()

    assert lines[0] == "`python benchmarks/quick.py`, 2026-01-01, one"
    assert [line.split(" | ")[0] for line in lines[4:]] == [f"| `{key}`" for key in quick.KEYS]
    assert all(" | 1.50 | " in line for line in lines[4:])


@pytest.fixture
def comparison() -> dict[str, Any]:
    """A result of `side_by_side.py`, of made-up figures."""
    cells = {
        name: [
            Cell(2, 10.0, audio_s, (1.0, 3.0)),
            Cell(2, 10.0, 2 * audio_s, (2.0, 4.0), num_dropped),
        ]
        for name, audio_s, num_dropped in (("ours", 80.0, 0), ("upstream", 4.0, 1))
    }
    spread = side_by_side.spread([1.0, 2.0, 6.0])
    row = {name: side_by_side.cell_row(found) for name, found in cells.items()}
    return {
        "command": side_by_side.command(2, 30.0, "int8", "full"),
        "date": "2026-01-01",
        "machine": "one",
        "clients": {clients: row | {"ratio": spread} for clients in ("1", "2", "4")},
        "first_audio_s": dict.fromkeys(("upstream", "low_latency", "quality"), spread),
        "cold_start_s": {"ours": spread, "upstream": spread},
        "peak_pss_mb": {"ours": 1000.4, "upstream": 2000.0},
        "stages_s": dict.fromkeys(side_by_side_tables.STAGES, 0.1),
        "steps_per_second": {"1": {"ours": spread, "upstream": spread, "ratio": 6.5}},
    }


def test_the_comparison_shows_medians_and_how_far_they_spread(comparison: dict[str, Any]) -> None:
    text = side_by_side_tables.as_tables(comparison)

    assert "| 2 | 12.00 (8.00 to 16.00) | 0.60 (0.40 to 0.80) | 2.00 (1.00 to 6.00) |" in text
    assert "| 2 | ours | 4 | 2.50 | 3.85 | 3.97 |" in text
    assert "| 2 | upstream | 4 | at least 2.50 | at least 3.85 | at least 3.97 |" in text
    assert "| peak PSS MB | 1000 | 2000 |" in text
    assert "| prefill | 100.0 | 14.3 % | running the prompt |" in text


def test_every_row_of_the_comparison_is_as_long_as_its_head(comparison: dict[str, Any]) -> None:
    tables = side_by_side_tables.as_tables(comparison).split("\n\n")[1:]

    for lines in map(str.splitlines, tables):
        assert {line.count(" | ") for line in lines} == {lines[0].count(" | ")}


def test_the_plots_depend_on_the_figures_alone(comparison: dict[str, Any], tmp_path: Path) -> None:
    written = []
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        paths = plots.write_plots(comparison, tmp_path / name)
        written.append({path.name: path.read_text(encoding="utf-8") for path in paths})

    assert set(written[0]) == {
        f"side_by_side_{name}.svg" for name in ("throughput", "latency", "first_audio", "stages")
    }
    assert written[0] == written[1]
    assert all("<svg" in text for text in written[0].values())


def test_frameworks_are_held_against_eager_pytorch_and_those_that_failed_are_named() -> None:
    times = {frameworks.EAGER: [2.0, 4.0, 3.0], "other": [1.0, 1.0, 1.0]}

    rows = frameworks.rows(times, {frameworks.COMPILED: "no compiler"}, steps=150)

    assert rows["other"] == {"steps_per_second": 150.0, "ratio": 3.0}
    assert rows[frameworks.COMPILED] == {"error": "no compiler"}
    assert rows[frameworks.TENSORRT] == {"error": "not measured"}


def test_an_error_of_many_lines_fits_into_a_cell() -> None:
    assert frameworks.first_line("\n  no | compiler  \nmore") == "no / compiler"
    assert frameworks.first_line("") == "no message"


# perf_analyzer


def test_a_report_of_perf_analyzer_is_read_by_its_columns() -> None:
    row = perf_report.read_report(REPORT)

    assert (row["infer_per_second"], row["p99_us"], row["compute_infer_us"]) == (1.5, 2683364, 5473)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 rows, wanted 1"),
        (REPORT.replace("Server Queue", "Queue"), "no column 'Server Queue'"),
    ],
)
def test_a_report_that_is_not_one_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perf_report.read_report(text)


def page(answered: int, failed: int, steps: int, seconds: float) -> str:
    return f"""\
# TYPE chattts_requests_total counter
chattts_requests_total{{ensemble="chattts",model="chattts",outcome="ok"}} {answered}
chattts_requests_total{{ensemble="chattts",model="chattts",outcome="error"}} {failed}
chattts_step_seconds_count{{ensemble="chattts"}} {steps}
chattts_step_seconds_sum{{ensemble="chattts"}} {seconds}
"""


def test_the_engines_figures_are_those_between_two_looks() -> None:
    before, after = (
        perf_report.Scrape.of(page(2, 1, 10, 1.0)),
        perf_report.Scrape.of(page(7, 3, 30, 1.5)),
    )

    row = perf_report.engine_row(before, after)

    assert (row["answered"], row["failed"]) == (5, 2)
    assert row["engine_step_ms"] == pytest.approx(25.0)
    assert row["engine_batch_size"] == 0.0
    assert after.num_requests == 10


def test_the_table_of_perf_analyzer_shows_microseconds_as_milliseconds() -> None:
    row = perf_report.read_report(REPORT) | perf_report.engine_row(
        perf_report.Scrape.of(""), perf_report.Scrape.of(page(1, 0, 10, 1.0))
    )
    head = {"command": "python benchmarks/perf_analyzer.py", "date": "d", "machine": "m"}

    lines = perf_report.as_table({**head, "levels": {"2": row}}).splitlines()

    assert lines[-1].startswith("| 2 | 1.50 | 1144.76 | 2665.96 | 2665.96 | 2683.36 | 1159.41 |")
    assert lines[-1].count(" | ") == lines[2].count(" | ")


def test_the_inputs_for_perf_analyzer_are_tensors_of_the_model() -> None:
    data = json.loads((ROOT / "benchmarks" / "perf_inputs.json").read_text(encoding="utf-8"))
    specs = {spec.name: spec for spec in CHATTTS.inputs}
    kinds = {"STRING": str, "INT64": int, "INT32": int, "FP32": float, "BOOL": bool}

    texts = [row["TEXT"][0] for row in data["data"]]

    assert list(data) == ["data"]
    for row in data["data"]:
        assert {"TEXT", "SEED"} <= set(row)
        for name, values in row.items():
            assert len(values) == specs[name].shape[0]
            assert all(type(value) is kinds[specs[name].dtype] for value in values)
    assert any(text.isascii() for text in texts)
    assert any("一" <= character <= "鿿" for text in texts for character in text)


# docs/performance.md


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the last table of a section that a script did not print."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    section = re.sub(r"(?s)<!-- begin: .*?<!-- end: ", "", section)
    tables = re.findall(r"(?m)(?:^\|.*\|$\n?)+", section)
    return [line.strip("| ").split(" | ") for line in tables[-1].splitlines()[2:]]


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "quick": quick.as_table,
    "side_by_side": side_by_side_tables.as_tables,
    "frameworks": frameworks.as_table,
    "perf_analyzer": perf_report.as_table,
}


@pytest.mark.parametrize("script", TABLES)
def test_the_page_holds_the_table_of_a_benchmark_that_was_run_and_no_other(script: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    path = ROOT / "benchmarks" / "results" / f"{script}.json"
    mark = f"output of benchmarks/{script}.py -->\n"

    blocks = re.findall(rf"<!-- begin: {mark}(.*)\n<!-- end: {mark}", page, re.DOTALL)

    was_run = path.is_file()
    results = [json.loads(path.read_text(encoding="utf-8"))] if was_run else []
    assert blocks == [TABLES[script](result) for result in results]


def test_every_figure_of_the_short_form_is_documented() -> None:
    assert [row[0].strip("`") for row in rows_of("Beside upstream")] == list(quick.KEYS)


def test_every_column_of_perf_analyzer_is_documented() -> None:
    heads = ["clients", *perf_report.SHOWN]
    percentiles = [head for head in heads if head.startswith("p")]

    documented = [row[0] for row in rows_of("perf_analyzer")]

    assert documented == [
        "p50 to p99 ms" if head == percentiles[0] else head
        for head in heads
        if head not in percentiles[1:]
    ]


def test_the_slots_that_fit_into_a_device_are_those_of_the_formula() -> None:
    full = SIZES["full"]
    position_bytes = 2 * full.num_layers * full.hidden_size * np.dtype(np.float16).itemsize

    fitting = [(int(row[1].removesuffix(" GB")), int(row[2])) for row in rows_of("Sizing")]

    assert len(fitting) == 5
    for gigabytes, slots in fitting:
        assert slots == gigabytes * 10**9 // (position_bytes * MAX_MODEL_LEN)


INSTALL = ROOT / "scripts" / "install_perf_analyzer.sh"


def install(directory: Path, on_path: str) -> subprocess.CompletedProcess[str]:
    """Run the script where PATH has a perf_analyzer of this text, and where pip always fails."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    program = bin_directory / "perf_analyzer"
    program.write_text(f"#!/bin/sh\n{on_path}\n", encoding="utf-8")
    program.chmod(0o755)
    return subprocess.run(
        [INSTALL, "false", directory / "installed"],
        env={**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_real_perf_analyzer_on_path_is_taken(tmp_path: Path) -> None:
    done = install(tmp_path, "echo 'usage: --concurrency-range <start:end:step>' >&2; exit 1")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "perf_analyzer").resolve() == tmp_path / "bin/perf_analyzer"


def test_a_placeholder_of_that_name_is_not_taken(tmp_path: Path) -> None:
    done = install(tmp_path, "echo 'a placeholder'")

    assert done.returncode != 0
    assert not (tmp_path / "installed" / "perf_analyzer").exists()
