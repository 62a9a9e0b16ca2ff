"""Dashboard and rules over a real Prometheus that scraped a real server and gateway."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard import Query, load_dashboard, panels, variables
from dashboard_picture import PICTURE, asked, draw
from prometheus_process import RULES, Prometheus, PrometheusError, scraping
from varied_load import UNENDING, VariedLoad, kill_member, running_gateway

from chattts_triton.server.background_server import BackgroundServer, serve_in_background

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
START_TIMEOUT_S = 90.0
WAIT_S = 60.0
SCRAPE_INTERVAL_S = 1.0
RATE_INTERVAL_S = 10
NUM_SLOTS = 2
GRID_COLUMNS = 24
NOBODY = {"triton": "127.0.0.1:1", "gateway": "127.0.0.1:1"}

DASHBOARD = load_dashboard()
PANELS = panels(DASHBOARD)
VARIABLES = variables(DASHBOARD)
QUERIES = [
    pytest.param(query, id=f"{panel.title}-{index}")
    for panel in PANELS
    for index, query in enumerate(panel.queries)
]
METRIC_NAME = re.compile(r"\b(?:chattts|nv)_\w+\b(?!:)")
SELECTOR = re.compile(r"[a-zA-Z_][a-zA-Z0-9_:]*\{[^{}]*\}")


@dataclass(frozen=True)
class Watched:
    """What Prometheus knows after the load."""

    prometheus: Prometheus
    server: BackgroundServer
    start_s: float

    def has_data(self, expression: str) -> bool:
        """Whether the expression had a value at any time."""
        found = self.prometheus.query_range(
            expression, self.start_s, time.time(), SCRAPE_INTERVAL_S
        )
        return any(series.has_data for series in found)


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        pause.wait(0.1)  # between two looks at another process that offers no event


def is_above(prometheus: Prometheus, expression: str, value: float) -> bool:
    return any(series.points[-1][1] > value for series in prometheus.query(expression))


def wait_until_counted(prometheus: Prometheus, outcome: str, number: int) -> None:
    counted = f'sum(chattts_requests_total{{outcome="{outcome}"}})'
    wait_for(lambda: is_above(prometheus, counted, number - 1))


@pytest.fixture(scope="module")
def watched(
    endless_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """After requests of all kinds, the death of a member, and more requests."""
    content_filter = tmp_path_factory.mktemp("filter") / "filter.toml"
    content_filter.write_text('[[list]]\nname = "none"\naction = "log"\nwords = ["zebra"]\n')
    start_s = time.time()
    with (
        serve_in_background(
            endless_repository,
            arguments=[f"--max-num-seqs={NUM_SLOTS}"],
            environment={**os.environ, "CHATTTS_MAX_WAITING": "0"},
            timeout_s=START_TIMEOUT_S,
        ) as server,
        running_gateway(server.grpc, f"--content-filter={content_filter}") as gateway,
        scraping(
            {"triton": server.metrics, "gateway": gateway}, interval_s=SCRAPE_INTERVAL_S
        ) as prometheus,
    ):
        load = VariedLoad(server.grpc, gateway)
        wait_for(lambda: is_above(prometheus, "sum(up)", 1))
        for seed in range(4):
            load.call(seed, 20)
            assert load.speak(seed, 60) == 200
        load.ask_wrongly()
        load.be_late()
        wait_until_counted(prometheus, "deadline", 1)  # by then its slot is free
        assert load.overfill(NUM_SLOTS) == 503
        wait_until_counted(prometheus, "cancelled", NUM_SLOTS)
        with load.stream(1, UNENDING) as stream:
            stream.read(1)
            kill_member(server, "gpt")
            server.wait_until_ready(START_TIMEOUT_S)
        for seed in range(4):
            load.call(seed, 20)
        wait_for(lambda: is_above(prometheus, 'ALERTS{alertname="ChatTTSRestarted"}', 0))
        wait_for(lambda: is_above(prometheus, "chattts_gateway_broken_streams_total", 0))
        yield Watched(prometheus, server, start_s)


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_dashboard_returns_data(watched: Watched, query: Query) -> None:
    expression = query.executable(RATE_INTERVAL_S, frozenset(VARIABLES))

    assert watched.has_data(expression), expression


def test_every_label_of_a_legend_is_there(watched: Watched) -> None:
    for panel in PANELS:
        for query in panel.queries:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            expression = query.executable(RATE_INTERVAL_S, frozenset(VARIABLES))
            for series in watched.prometheus.query_range(
                expression, watched.start_s, time.time(), 1.0
            ):
                assert wanted <= set(series.labels), (panel.title, query.legend)


def test_every_variable_of_the_dashboard_has_values(watched: Watched) -> None:
    for name, query in VARIABLES.items():
        call = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert call, query
        assert watched.prometheus.label_values(call[2], call[1]), name


def test_the_death_of_a_member_is_seen_on_the_dashboard(watched: Watched) -> None:
    (panel,) = (panel for panel in PANELS if panel.title == "Member restarts")
    expression = panel.queries[0].executable(RATE_INTERVAL_S, frozenset(VARIABLES))

    assert [series.points[-1][1] for series in watched.prometheus.query(expression)] == [1]


def test_every_recorded_series_and_every_alert_is_evaluated_without_an_error(
    watched: Watched,
) -> None:
    found = watched.prometheus.rules()

    assert {rule["name"] for rule in found} == {
        rule.get("alert") or rule["record"] for rule in committed_rules()
    }
    wrong = {rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"}
    assert wrong == {}


def test_every_recorded_series_has_data(watched: Watched) -> None:
    names = [rule["record"] for rule in committed_rules() if "record" in rule]

    empty = [name for name in names if not watched.has_data(name)]

    assert empty == []


def test_every_selector_of_the_rules_names_series_that_are_there(watched: Watched) -> None:
    selectors = {
        selector for rule in committed_rules() for selector in SELECTOR.findall(rule["expr"])
    }

    empty = [selector for selector in sorted(selectors) if not watched.has_data(selector)]

    assert selectors
    assert empty == []


def test_every_metric_of_rules_and_dashboard_is_exposed(watched: Watched) -> None:
    expressions = [rule["expr"] for rule in committed_rules()]
    expressions += [query.expression for panel in PANELS for query in panel.queries]
    expressions += VARIABLES.values()
    recorded = {rule["record"] for rule in committed_rules() if "record" in rule}
    exposed = set(watched.prometheus.label_values("__name__", '{__name__=~".+"}'))

    text = " ".join(expressions)
    used = set(METRIC_NAME.findall(re.sub(r"\w+:\w+:\w+", "", text)))
    used_records = set(re.findall(r"\w+:\w+:\w+", text))

    assert used - exposed == set()
    assert used_records - recorded == set()


def test_only_the_alerts_fire_that_the_load_gave_reason_for(watched: Watched) -> None:
    found = watched.prometheus.query('ALERTS{alertstate="firing"}')

    firing = {series.labels["alertname"] for series in found}
    # On a busy machine a scrape may come too late, which looks like a server that is away.
    assert firing - {"ChatTTSRestartLoop"} == {"ChatTTSRestarted"}


def test_the_picture_has_every_panel_and_says_that_it_is_no_screenshot(
    watched: Watched, tmp_path: Path
) -> None:
    picture = tmp_path / "images" / "dashboard.svg"

    draw(asked(watched.prometheus, watched.start_s, time.time()), watched.start_s, "x", picture)

    assert_shows_every_panel(picture)


def test_the_picture_of_the_documents_is_that_of_this_dashboard() -> None:
    assert_shows_every_panel(PICTURE)


def assert_shows_every_panel(picture: Path) -> None:
    texts = set(re.findall(r">([^<>]+)</text>", picture.read_text(encoding="utf-8")))
    titles = {panel.title for panel in PANELS if panel.kind == "timeseries"}
    assert titles - texts == set()
    assert any("not a screenshot of Grafana" in text for text in texts)


def test_a_wrong_query_is_an_error_that_names_it(watched: Watched) -> None:
    with pytest.raises(PrometheusError, match=r"query: .*parse error"):
        watched.prometheus.query("sum(")


def test_a_member_that_does_not_exist_cannot_be_killed(watched: Watched) -> None:
    with pytest.raises(LookupError, match="nobody: no process"):
        kill_member(watched.server, "nobody")


def test_a_prometheus_that_is_not_installed_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with (
        pytest.raises(PrometheusError, match=r"not found; scripts/install_prometheus\.sh"),
        scraping(NOBODY, interval_s=1),
    ):
        pass


def test_a_prometheus_that_does_not_start_is_an_error_with_its_own_words() -> None:
    with (
        pytest.raises(PrometheusError, match="prometheus: does not listen") as caught,
        scraping(NOBODY, interval_s=-1),
    ):
        pass

    assert "not a valid duration" in "".join(caught.value.__notes__)


def test_a_query_with_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(KeyError, match="cluster"):
        Query('up{job="$cluster"}', "").executable(5, frozenset(VARIABLES))


def test_panels_do_not_overlap_and_lie_within_the_grid() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in DASHBOARD["panels"]]

    for _, place in places:
        assert place["x"] + place["w"] <= GRID_COLUMNS
    overlapping = [
        (first, second)
        for (first, one), (second, other) in combinations(places, 2)
        if are_overlapping(one, other)
    ]
    assert overlapping == []


def are_overlapping(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def test_panels_and_their_queries_have_names_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel.title for panel in PANELS]

    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)
    for panel in DASHBOARD["panels"]:
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references), panel["title"]


def test_every_panel_says_what_it_shows_and_asks_the_chosen_data_source() -> None:
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources), panel["title"]


def test_the_data_source_that_is_provided_is_the_one_that_is_chosen() -> None:
    (provided,) = provisioned("datasources/prometheus.yml")["datasources"]
    (chosen,) = (each for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource")
    scraped = yaml.safe_load((RULES / "prometheus.yml").read_text(encoding="utf-8"))["global"]

    assert chosen["current"]["value"] == provided["uid"]
    assert chosen["query"] == provided["type"]
    assert provided["jsonData"]["timeInterval"] == scraped["scrape_interval"]


def test_dashboards_are_looked_for_in_one_directory() -> None:
    (provider,) = provisioned("dashboards/chattts.yml")["providers"]

    assert provider["type"] == "file"
    assert provider["options"] == {"path": "/var/lib/grafana/dashboards"}
    assert [path.name for path in (GRAFANA / "dashboards").iterdir()] == ["chattts.json"]


def provisioned(name: str) -> Any:
    return yaml.safe_load((GRAFANA / "provisioning" / name).read_text(encoding="utf-8"))


def committed_rules() -> list[dict[str, Any]]:
    loaded = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES.glob("*_rules.yml")
    ]
    return [rule for file in loaded for group in file["groups"] for rule in group["rules"]]
