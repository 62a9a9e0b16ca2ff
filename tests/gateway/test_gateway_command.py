"""`chattts-triton gateway` as a process."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_streams import silence
from fake_triton import FakeTriton
from gateway_harness import RunningGateway

from chattts_triton.cli.main import main

WAIT_S = 60.0


@contextmanager
def started(*arguments: str) -> Iterator[tuple[RunningGateway, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "chattts_triton.cli.main", "gateway", "--port", "0"]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        ready = re.fullmatch(r"ready http=(127\.0\.0\.1):(\d+)\n", process.stdout.readline())
        assert ready
        yield RunningGateway(ready[1], int(ready[2])), process
    finally:
        process.kill()
        process.communicate()


def test_it_says_where_it_listens_answers_and_stops_on_a_signal(triton: FakeTriton):
    with started("--triton", triton.url) as (gateway, process):
        answer = gateway.speak("abc", response_format="wav", seed=3)
        process.send_signal(signal.SIGTERM)
        rest, log = process.communicate(timeout=WAIT_S)

    assert answer.status == 200
    assert (process.returncode, rest) == (0, "")
    assert answer.headers["X-Request-ID"] in log
    assert "abc" not in log.replace(answer.headers["X-Request-ID"], "")


def test_what_is_in_flight_is_answered_before_it_stops(triton: FakeTriton):
    go_on = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), go_on, silence(1, reason="stop")]
    body = {"input": "a", "response_format": "pcm"}

    with started("--triton", triton.url) as (gateway, process):
        with gateway.sent("POST", "/v1/audio/speech", body) as response:
            assert response.read(10)
            process.send_signal(signal.SIGTERM)
            wait_until_refused(gateway)
            go_on.set()
            rest = response.read()
        process.communicate(timeout=WAIT_S)

    assert len(rest) + 10 == 2 * 2 * 512
    assert process.returncode == 0


def wait_until_refused(gateway: RunningGateway) -> None:
    while True:
        try:
            socket.create_connection((gateway.host, gateway.port), timeout=WAIT_S).close()
        except ConnectionRefusedError:
            return


def test_what_lasts_too_long_is_cut_off_when_it_stops(triton: FakeTriton):
    triton.stream_steps = lambda inputs: [silence(0), threading.Event()]
    body = {"input": "a", "response_format": "pcm"}

    with started("--triton", triton.url, "--exit-timeout", "0") as (gateway, process):
        with gateway.sent("POST", "/v1/audio/speech", body) as response:
            assert response.read(10)
            process.send_signal(signal.SIGTERM)
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()
        process.communicate(timeout=WAIT_S)

    assert triton.stream_cancelled.wait(WAIT_S)


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["gateway", "--port", str(port)])

    assert code == 1
    assert capsys.readouterr().err == (
        f"chattts-triton gateway: port {port} (--port) is taken by another program\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--triton", "nowhere"],
        ["--triton", "http://a:1"],
        ["--port", "65536"],
        ["--host", "example"],
        ["--timeout", "0"],
        ["--read-timeout", "x"],
        ["--max-characters", "0"],
        ["--exit-timeout", "-1"],
    ],
)
def test_a_wrong_option_is_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["gateway", *arguments])

    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_triton_that_is_named_twice_is_one_line(capsys: pytest.CaptureFixture[str]):
    code = main(["gateway", "--triton", "a:1", "--triton", "a:1"])

    assert code == 1
    assert "triton: got ('a:1', 'a:1'), wanted at least one, each once" in capsys.readouterr().err


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["gateway", "--help"])
    declared = set(re.findall(r"(?m)^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out))

    document = Path(__file__).parents[2] / "docs" / "gateway.md"
    documented = re.findall(r"(?m)^\| `(--[a-z-]+)", document.read_text(encoding="utf-8"))

    assert sorted(documented) == sorted(declared - {"--help"})
