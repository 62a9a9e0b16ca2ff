"""The stepped load of `benchmarks/locustfile.py`, for a few seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_gateway import FakeGateway
from triton_calls import RunningServer

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


def run_locust(host: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Its status, what it counted under each name, and what it wrote on standard error."""
    # A process of its own, since locust replaces much of the standard library in its own.
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "benchmarks" / "locustfile.py")]
    command += ["--headless", "--only-summary", "--json", "--host", host, *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, cwd=ROOT
    )
    entries = json.loads(result.stdout or "[]")
    return result.returncode, {entry["name"]: entry for entry in entries}, result.stderr


def test_triton_is_loaded_step_by_step(server: RunningServer):
    status, entries, err = run_locust(
        f"http://{server.http_url}", "--steps=1,3", "--step-s=4", "--max-new-tokens=5"
    )

    assert status == 0, err
    assert set(entries) == {"speech"}
    assert entries["speech"]["num_requests"] > 2
    assert entries["speech"]["num_failures"] == 0
    server.assert_alive()


@pytest.mark.parametrize(
    ("answer", "name", "status"),
    [
        (None, "speech", 0),
        ((429, b"{}"), "refused (429)", 0),
        ((503, b"{}"), "refused (503)", 0),
        ((500, b'{"error": {"code": "generation_failed", "message": "why"}}'), "speech", 1),
        ((503, b'{"error": {"code": "upstream_unavailable", "message": "why"}}'), "speech", 1),
    ],
)
def test_refusals_are_counted_apart_and_failures_are_failures(
    answer: tuple[int, bytes] | None, name: str, status: int
):
    with FakeGateway() as gateway:
        gateway.refusal = answer
        found, entries, err = run_locust(gateway.url, "--steps=1", "--step-s=2")

    assert found == status, err
    assert set(entries) == {name}
    assert entries[name]["num_requests"] == len(gateway.bodies) > 0
    assert (entries[name]["num_failures"] > 0) is (status == 1)
    assert gateway.bodies[0]["response_format"] == "wav"


def test_wrong_steps_are_refused():
    status, _, err = run_locust("http://127.0.0.1:1", "--steps=50,many")

    assert status == 2
    assert "--steps: got '50,many', wanted numbers of users such as 50,100,200" in err
