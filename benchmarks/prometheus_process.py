"""A real Prometheus with the configuration of `deploy/prometheus`, on a free port."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from chattts_triton.server.server_process import end_with_parent

RULES = Path(__file__).parents[1] / "deploy" / "prometheus"
WAIT_S = 30.0


class PrometheusError(Exception):
    """Prometheus is not installed, did not start, or refused a query; the message says which."""


@dataclass(frozen=True)
class Series:
    """The values of one set of labels.

    Attributes:
        labels: Without the name of the metric, if the query has taken it off.
        points: Time in seconds since 1970, and value, which may be NaN.
    """

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def has_data(self) -> bool:
        """Whether any value is a number."""
        return any(math.isfinite(value) for _, value in self.points)


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that answers; any thread may ask.

    Attributes:
        url: Of its HTTP service.
    """

    url: str

    def query(self, expression: str) -> list[Series]:
        """The value of an expression at this moment.

        Raises:
            PrometheusError: The expression is refused.
        """
        result = self._data("query", query=expression)["result"]
        return [Series(each["metric"], _points([each["value"]])) for each in result]

    def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[Series]:
        """The values of an expression between two times, both in seconds since 1970.

        Raises:
            PrometheusError: The expression is refused.
        """
        told = {"query": expression, "start": start_s, "end": end_s, "step": step_s}
        result = self._data("query_range", **told)["result"]
        return [Series(each["metric"], _points(each["values"])) for each in result]

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values of a label in the series that a selector names."""
        values = self._data(f"label/{label}/values", **{"match[]": selector})
        return [str(value) for value in values]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with what came of its last evaluation."""
        groups = self._data("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _data(self, path: str, **parameters: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(f"{path}: {error.read().decode()}") from error


@contextmanager
def scraping(targets: Mapping[str, str], *, interval_s: float) -> Iterator[Prometheus]:
    """Run Prometheus on the committed configuration, with other targets and at another pace.

    Args:
        targets: HOST:PORT by the name of the job.
        interval_s: Between two scrapes, and between two evaluations of the rules.

    Raises:
        PrometheusError: It is not installed, or did not start; the message says which.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise PrometheusError("prometheus: not found; scripts/install_prometheus.sh installs it")
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as log:
        directory = Path(name)
        config = directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(_configuration(targets, interval_s)), encoding="utf-8")
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(),
        )
        try:
            prometheus = Prometheus(f"http://127.0.0.1:{_port(process)}")
            _wait_until_ready(prometheus)
            yield prometheus
        except PrometheusError as error:
            log.seek(0)
            error.add_note(log.read().decode(errors="replace"))
            raise
        finally:
            process.terminate()
            process.wait(WAIT_S)


def _configuration(targets: Mapping[str, str], interval_s: float) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((RULES / "prometheus.yml").read_text(encoding="utf-8"))
    interval = f"{round(1000 * interval_s)}ms"
    config["global"] = {
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "evaluation_interval": interval,
    }
    config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    return config


def _port(process: subprocess.Popen[bytes]) -> int:
    """The free port that it has taken, which it tells nobody."""
    deadline_s = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        for connection in psutil.Process(process.pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                return int(connection.laddr.port)
        time.sleep(0.05)  # between two looks at a process that offers no event
    raise PrometheusError("prometheus: does not listen")


def _wait_until_ready(prometheus: Prometheus) -> None:
    """Until then it has no rules and answers 503."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=WAIT_S):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if time.monotonic() > deadline_s:
                raise PrometheusError("prometheus: not ready in time") from error
        time.sleep(0.05)  # between two looks at a process that offers no event


def _points(values: list[list[Any]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(time_s), float(value)) for time_s, value in values)
