"""Grafana's dashboard of `deploy/grafana`: its panels, and queries as Prometheus takes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "chattts.json"
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_EVERYTHING = ".*"


@dataclass(frozen=True)
class Query:
    """One expression of a panel.

    Attributes:
        expression: PromQL with Grafana's variables in it.
        legend: The name of each series, with labels as `{{label}}`.
    """

    expression: str
    legend: str

    def executable(self, rate_interval_s: int, names: frozenset[str]) -> str:
        """The expression with every variable replaced: a filter lets everything through.

        Args:
            rate_interval_s: What stands for `$__rate_interval`.
            names: The variables of the dashboard.

        Raises:
            KeyError: The expression has a variable that the dashboard has not.
        """
        values = dict.fromkeys(names, _EVERYTHING) | {"__rate_interval": f"{rate_interval_s}s"}
        return _VARIABLE.sub(lambda match: values[match[1]], self.expression)

    def name_of(self, labels: dict[str, str]) -> str:
        """The legend of a series."""
        return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), self.legend)


@dataclass(frozen=True)
class Panel:
    """A panel that shows something; rows are left out.

    Attributes:
        kind: Grafana's type, `timeseries` or `stat`.
        unit: Grafana's name of it, such as `s` or `percentunit`.
    """

    title: str
    kind: str
    unit: str
    queries: tuple[Query, ...]


def load_dashboard(path: Path = DASHBOARD) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def variables(dashboard: dict[str, Any]) -> dict[str, str]:
    """The query of each variable that filters; that of the data source has none."""
    return {
        each["name"]: each["query"]["query"]
        for each in dashboard["templating"]["list"]
        if each["type"] == "query"
    }


def panels(dashboard: dict[str, Any]) -> list[Panel]:
    """The panels from the top to the bottom."""
    return [
        Panel(
            title=each["title"],
            kind=each["type"],
            unit=each["fieldConfig"]["defaults"]["unit"],
            queries=tuple(
                Query(target["expr"], target["legendFormat"]) for target in each["targets"]
            ),
        )
        for each in dashboard["panels"]
        if each["type"] != "row"
    ]
