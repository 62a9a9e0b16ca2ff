"""Rules and configuration of Prometheus under its own tool, and what is said about the alerts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from chattts_triton.cli.main import build_parser

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
OPERATIONS = ROOT / "docs" / "operations.md"
SEVERITIES = {"critical", "warning"}


def rules(kind: str) -> list[dict[str, Any]]:
    """The rules of all files that the configuration names."""
    loaded = [read(RULES / name) for name in read(RULES / "prometheus.yml")["rule_files"]]
    every = [rule for file in loaded for group in file["groups"] for rule in group["rules"]]
    return [rule for rule in every if kind in rule]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def unit_tests() -> list[dict[str, Any]]:
    return [test for path in (RULES / "tests").glob("*.yml") for test in read(path)["tests"]]


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    assert program, "scripts/install_prometheus.sh installs promtool"
    done = subprocess.run(
        [program, *arguments], cwd=RULES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid() -> None:
    assert "prometheus.yml is valid" in promtool("check", "config", "prometheus.yml")


def test_what_is_scraped_are_the_ports_that_server_and_gateway_take_by_default() -> None:
    parser = build_parser()
    scraped = {
        job["job_name"]: job["static_configs"][0]["targets"][0].rpartition(":")[2]
        for job in read(RULES / "prometheus.yml")["scrape_configs"]
    }

    assert scraped == {
        "triton": str(parser.parse_args(["serve"]).metrics_port),
        "gateway": str(parser.parse_args(["gateway"]).port),
    }


def test_every_rule_file_is_valid_and_part_of_the_configuration() -> None:
    names = read(RULES / "prometheus.yml")["rule_files"]

    promtool("check", "rules", "--lint-fatal", *names)

    assert sorted(names) == sorted(path.name for path in RULES.glob("*_rules.yml"))


@pytest.mark.parametrize("name", sorted(path.name for path in (RULES / "tests").glob("*.yml")))
def test_the_rules_do_what_their_tests_say(name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", f"tests/{name}")


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    cases = [case for test in unit_tests() for case in test.get("alert_rule_test", [])]

    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    is_silent = {case["alertname"] for case in cases if not case["exp_alerts"]}

    assert fires == is_silent == {rule["alert"] for rule in rules("alert")}


def test_every_recorded_series_is_tested() -> None:
    expressions = [
        case["expr"] for test in unit_tests() for case in test.get("promql_expr_test", [])
    ]

    untested = [
        rule["record"]
        for rule in rules("record")
        if not any(rule["record"] in expression for expression in expressions)
    ]

    assert untested == []


def test_every_recorded_series_is_used_or_documented() -> None:
    used = " ".join(rule["expr"] for rule in rules("alert") + rules("record"))
    section = OPERATIONS.read_text(encoding="utf-8")

    unused = [
        rule["record"]
        for rule in rules("record")
        if rule["record"] not in used and f"`{rule['record']}`" not in section
    ]

    assert unused == []


def test_every_alert_says_how_grave_it_is_and_where_to_read_on() -> None:
    for rule in rules("alert"):
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]
        assert rule["labels"]["severity"] in SEVERITIES, rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_the_sections_of_the_runbook_are_those_of_the_alerts() -> None:
    sections = alert_sections()

    assert list(sections) == [rule["alert"] for rule in rules("alert")]
    for rule in rules("alert"):
        section = sections[rule["alert"]]
        summary = f"*{rule['labels']['severity']}*: {rule['annotations']['summary']}"
        assert " ".join(section.split()).startswith(summary), rule["alert"]
        assert "\n**What it means.** " in section, rule["alert"]
        assert "\n**What to do.** " in section, rule["alert"]


def alert_sections() -> dict[str, str]:
    """The sections below `Alerts` by their heading."""
    page = OPERATIONS.read_text(encoding="utf-8")
    alerts = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    parts = re.split(r"(?m)^### (.+)$\n", alerts)[1:]
    return {name: section.lstrip() for name, section in zip(parts[::2], parts[1::2], strict=True)}
