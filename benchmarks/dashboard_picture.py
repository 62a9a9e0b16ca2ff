"""The panels of Grafana's dashboard as a picture, drawn by matplotlib from a real Prometheus.

It scrapes a server and a gateway before it while these are under a load that is light, then too
much, then light again, when a member of the server is killed.
Usage: python benchmarks/dashboard_picture.py [--seconds N] [--size full|tiny] [--picture FILE]
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
from dashboard import Panel, load_dashboard, panels, variables
from machine import describe_machine
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plots import STYLE
from prepared import ROOT, SIZES, prepare
from prometheus_process import Prometheus, Series, scraping
from tqdm import tqdm
from varied_load import VariedLoad, kill_member, running_gateway

from chattts_client import ChatTTSClientError
from chattts_triton.server.background_server import serve_in_background

PICTURE = ROOT / "docs" / "images" / "dashboard.svg"
PRECISION = "int8"
NUM_SLOTS = 4
MAX_WAITING = 4
NUM_CODES = (30, 120)  # between these: 0.6 to 2.6 s of audio
SCRAPE_INTERVAL_S = 1.0
RATE_INTERVAL_S = 10
STEP_S = 2.0
LEAVES_ONE_IN = 8  # streams that are left before their end
WRONG_ONE_IN = 10
COLUMNS = 3
ROOM_FOR_LEGEND = 1.4
UNITS = {
    "s": "s",
    "reqps": "per second",
    "ops": "per second",
    "percentunit": "share",
    "bytes": "bytes",
    "none": "",
}
COLORS = ("#1b6ca8", "#c4622d", "#4b8b5a", "#8c6bb1", "#8c8c8c", "#b5a33c", "#3aa6a6", "#a83250")
STYLES = ("-", "--")  # of more series than colours


@dataclass(frozen=True)
class Phase:
    """A part of the load: callers of the server, and of the gateway, at the same time."""

    num_callers: int
    num_speakers: int


PHASES = (Phase(1, 1), Phase(3, 9), Phase(1, 2))
KILLED_IN = 2  # the phase in which a member is killed
SPEAKING_S = 5.0  # by then streams are in flight, which break off


def main() -> None:
    """Run the load, ask for every panel, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=int, default=60, help="of each of the three phases")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    repository = prepare(PRECISION, args.size).repository
    with (
        serve_in_background(
            repository,
            arguments=[f"--max-num-seqs={NUM_SLOTS}"],
            environment={**os.environ, "CHATTTS_MAX_WAITING": str(MAX_WAITING)},
        ) as server,
        running_gateway(server.grpc) as gateway,
        scraping(
            {"triton": server.metrics, "gateway": gateway}, interval_s=SCRAPE_INTERVAL_S
        ) as prometheus,
    ):
        load = VariedLoad(server.grpc, gateway)
        start_s = time.time()
        for number, phase in enumerate(tqdm(PHASES, desc="phases")):
            with under_load(load, phase):
                if number == KILLED_IN:
                    time.sleep(SPEAKING_S)
                    kill_member(server, "gpt")
                    server.wait_until_ready(args.seconds + 300)
                time.sleep(args.seconds)  # the load is what is wanted
        shown = asked(prometheus, start_s, time.time())
    source = f"python benchmarks/dashboard_picture.py, {datetime.now(UTC):%Y-%m-%d}"
    draw(
        shown, start_s, f"{source}, {args.size} random weights, {describe_machine()}", args.picture
    )


@contextmanager
def under_load(load: VariedLoad, phase: Phase) -> Iterator[None]:
    """Have so many callers and speakers at work, each with its own draws."""
    stop = threading.Event()

    def call(draws: random.Random) -> None:
        if draws.randrange(WRONG_ONE_IN) == 0:
            load.ask_wrongly()
        load.call(draws.randrange(1000), draws.randint(*NUM_CODES))

    def speak(draws: random.Random) -> None:
        if draws.randrange(LEAVES_ONE_IN) == 0:
            with load.stream(draws.randrange(1000), NUM_CODES[1]) as stream:
                stream.read(1)
        else:
            load.speak(draws.randrange(1000), draws.randint(*NUM_CODES))

    def keep(kind: str, seed: int) -> None:
        draws = random.Random(seed)
        while not stop.wait(0.1):  # one that is refused would else ask at once, again and again
            with suppress(ChatTTSClientError, http.client.HTTPException, OSError):
                (call if kind == "call" else speak)(draws)

    kinds = ["call"] * phase.num_callers + ["speak"] * phase.num_speakers
    threads = [threading.Thread(target=keep, args=(kind, seed)) for seed, kind in enumerate(kinds)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def asked(
    prometheus: Prometheus, start_s: float, end_s: float
) -> list[tuple[Panel, list[tuple[str, Series]]]]:
    """Each panel that shows the course of time, and its series by their legends."""
    dashboard = load_dashboard()
    names = frozenset(variables(dashboard))
    return [
        (
            panel,
            [
                (query.name_of(dict(series.labels)), series)
                for query in panel.queries
                for series in prometheus.query_range(
                    query.executable(RATE_INTERVAL_S, names), start_s, end_s, STEP_S
                )
            ],
        )
        for panel in panels(dashboard)
        if panel.kind == "timeseries"
    ]


def draw(
    shown: Sequence[tuple[Panel, list[tuple[str, Series]]]],
    start_s: float,
    source: str,
    picture: Path,
) -> None:
    """Write the picture.

    Args:
        shown: Panels and their series.
        start_s: What counts as the beginning, in seconds since 1970.
        source: Where the figures come from; stands above the panels.
        picture: An SVG file; its directory is made.
    """
    num_rows = -(-len(shown) // COLUMNS)
    with mpl.rc_context({**STYLE, "font.size": 7}):
        figure = Figure(figsize=(4.0 * COLUMNS, 2.4 * num_rows + 0.6), layout="constrained")
        figure.suptitle(
            f"Drawn by matplotlib from Prometheus; not a screenshot of Grafana.\n{source}"
        )
        grid = list(figure.subplots(num_rows, COLUMNS, squeeze=False).flat)
        for axes, (panel, series) in zip(grid, shown, strict=False):  # some places may be left
            _draw_panel(axes, panel, series, start_s)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, metadata={"Date": None})


def _draw_panel(
    axes: Axes, panel: Panel, series: Sequence[tuple[str, Series]], start_s: float
) -> None:
    for number, (name, each) in enumerate(series):
        times = [time_s - start_s for time_s, _ in each.points]
        values = [value for _, value in each.points]
        round_number, color = divmod(number, len(COLORS))
        style = {"color": COLORS[color], "linestyle": STYLES[round_number % len(STYLES)]}
        axes.plot(times, values, label=name, linewidth=1, **style)
    axes.set(title=panel.title, ylabel=UNITS[panel.unit], xlabel="s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0, top=ROOM_FOR_LEGEND * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=5, ncols=2, loc="upper left")


if __name__ == "__main__":
    main()
