"""docs/benchmarks.md against the command, the reports and the scripts that it describes."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks.queue_delay_table import HEADER, as_table
from chattts_triton.cli.main import build_parser
from chattts_triton.load.report import LEVEL_HEADER
from chattts_triton.load.summary import Summary, Underruns

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
QUEUE_DELAY = ROOT / "benchmarks" / "results" / "queue_delay.json"
NOT_RUN = "Not run yet."


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"(?m)^\| (.+) \|$", section)[1:]
    return [[cell.strip("` ") for cell in line.split(" | ")] for line in lines if line[0] != "-"]


def bench_options() -> dict[str, Any]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a.choices, dict))
    assert isinstance(commands.choices, dict)
    return {
        option: action.default
        for action in commands.choices["bench"]._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }


def test_the_options_of_bench_and_their_defaults_are_documented() -> None:
    documented = {row[0]: row[1] for row in rows("Options")}

    shown = {"None": "none", "False": "off"}
    defaults = {option: str(default) for option, default in bench_options().items()}
    assert documented == {option: shown.get(text, text) for option, text in defaults.items()}


def test_every_figure_of_a_report_is_documented() -> None:
    documented = {row[1] for row in rows("What is reported")}

    elsewhere = {"messages", "elapsed_s"}  # told with the figure that they belong to
    assert documented == {field.name for field in fields(Summary)} - elsewhere
    for name in (*elsewhere, *(field.name for field in fields(Underruns))):
        assert f"`{name}`" in PAGE


def test_the_columns_of_a_search_are_documented() -> None:
    documented = [name for row in rows("Capacity") for name in row[0].split(", ")]

    assert documented == list(LEVEL_HEADER)


def test_the_figures_of_the_queue_delay_are_those_of_its_result_file() -> None:
    marked = re.search(r"<!-- begin: output of \S+ -->\n(.*)\n<!-- end", PAGE, re.DOTALL)
    is_run = QUEUE_DELAY.is_file()
    expected = as_table(json.loads(QUEUE_DELAY.read_text("utf-8"))) if is_run else NOT_RUN

    assert marked is not None
    assert marked[1] == expected


def test_the_table_of_the_queue_delay_has_a_row_for_each_rate_and_delay() -> None:
    spread = {"p50": 0.25, "p95": 0.5}
    row = {
        "rate_per_s": 0.3,
        "delay_us": 10_000,
        "ttfa_s": spread,
        "latency_s": spread,
        "audio_seconds_per_second": 1.5,
        "num_refused": 0,
    }
    result = {"command": "run", "date": "today", "machine": "here", "rows": [row, row]}

    lines = as_table(result).splitlines()

    assert lines[0] == "`run`, today, here"
    assert lines[2] == HEADER
    assert lines[4:] == ["| 0.3 | 10 | 0.250 | 0.500 | 0.250 | 0.500 | 1.50 | 0 |"] * 2


@pytest.mark.parametrize("option", ["--steps", "--step-s", "--max-new-tokens"])
def test_the_options_of_the_locustfile_are_documented(option: str) -> None:
    # Not imported: locust replaces much of the standard library in the process that loads it.
    source = ast.parse((ROOT / "benchmarks" / "locustfile.py").read_text("utf-8"))
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    defaults = {
        call.args[0].value: {
            word.arg: ast.literal_eval(word.value)
            for word in call.keywords
            if word.arg == "default"
        }
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and isinstance(call.args[0], ast.Constant)
    }

    documented = {row[0]: row[1] for row in rows("Users over HTTP")}

    assert set(documented) == set(defaults)
    default = defaults[option].get("default")
    wanted = ",".join(map(str, default)) if isinstance(default, list) else default
    assert documented[option] == ("none" if wanted is None else str(wanted).removesuffix(".0"))
