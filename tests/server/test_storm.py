"""Thousands of calls of every kind at random, and what is left of them on the server: nothing."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpcclient
from stream_calls import StreamCall, samples_of
from triton_calls import START_TIMEOUT_S, Refusal, RunningServer, refusal_of
from tritonclient.utils import InferenceServerException

from chattts_triton.manifest import PYTHON_MODELS
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.server.shared_memory import SHARED_MEMORY, STUB_NAME
from chattts_triton.serving.stream import CALLER_CLOSES

NUM_CALLS = 2000
NUM_WARM_UP_CALLS = 200
MAX_STORMS = 4
NUM_CLIENTS = 12
SETTLE_S = 20.0
SEED = 20261130
GRPC_SPARE_THREADS = 4  # of tritonserver: gRPC starts and ends some of its own as it sees fit

ENDLESS = {"SEED": 0, "MAX_NEW_TOKENS": 2048, "REPETITION_PENALTY": 1.0, "TEMPERATURE": 0.01}
BAD_INPUTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("!!!", {}),
    ("你好", {"SPEED": 10}),
    ("你好", {"TEMPERATURE": float("nan")}),
    ("你好", {"VOICE": "nobody"}),
    ("你好", {"SEED": -2}),
)


@dataclass(frozen=True)
class Wish:
    """A call whose samples must depend on nothing else."""

    text: str
    seed: int
    num_codes: int
    mode: str  # empty: a call with one answer

    def speak(self, server: RunningServer, **parameters: Any) -> bytes | Refusal:
        options: dict[str, Any] = {"SEED": self.seed, "MAX_NEW_TOKENS": self.num_codes}
        if not self.mode:
            return one_answer(server, self.text, parameters=parameters, **options)
        options["MODE"] = self.mode
        with StreamCall(server, self.text, parameters=parameters, **options) as call:
            outcome = call.outcome()
        return outcome if isinstance(outcome, Refusal) else samples_of(outcome).tobytes()


WISHES = [
    Wish(text, seed, num_codes, mode)
    for text, seed, num_codes in (
        ("你好。", 1, 12),
        ("今天天气怎么样？", 2, 40),
        ("Good morning.", 3, 25),
        ("一，二，三。", 4, 60),
    )
    for mode in ("", "quality", "low_latency")
]


class Storm:
    """Makes calls of all kinds; each must end in one of the ways that its kind may end."""

    def __init__(self, server: RunningServer, expected: dict[Wish, bytes | Refusal]) -> None:
        self._server = server
        self._expected = expected
        self._kinds: tuple[Callable[[random.Random], str], ...] = (
            *(6 * [self._wish]),
            self._cancelled_stream,
            self._cancelled_call,
            self._late,
            self._bad,
        )

    def run(self, num_calls: int, seed: int) -> Counter[str]:
        """How many calls ended in which way."""
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            return Counter(pool.map(self._call, range(seed, seed + num_calls)))

    def _call(self, seed: int) -> str:
        draw = random.Random(seed)
        return draw.choice(self._kinds)(draw)

    def _wish(self, draw: random.Random) -> str:
        wish = draw.choice(WISHES)
        closes = {CALLER_CLOSES: True} if wish.mode and draw.random() < 0.5 else {}
        outcome = wish.speak(self._server, queue_priority=draw.randrange(3), **closes)
        if isinstance(outcome, Refusal):
            return refused(outcome)
        assert outcome == self._expected[wish], wish
        return "ok"

    def _cancelled_stream(self, draw: random.Random) -> str:
        with StreamCall(self._server, "你好", MODE="low_latency", **ENDLESS) as call:
            for _ in range(draw.randrange(4)):
                if isinstance(response := call.next(), Refusal):
                    return refused(response)
        return "cancelled"

    def _cancelled_call(self, draw: random.Random) -> str:
        """A call whose client does not wait for its answer; its own timeout ends it."""
        timeout_us = draw.randrange(50_000, 200_000)
        outcome = one_answer(
            self._server,
            "你好",
            timeout_us=timeout_us,
            client_timeout_s=draw.uniform(0.001, 0.04),
            **ENDLESS,
        )
        assert isinstance(outcome, Refusal)
        assert outcome.status in ("DEADLINE_EXCEEDED", "UNAVAILABLE"), outcome
        return "left"

    def _late(self, draw: random.Random) -> str:
        timeout_us = draw.randrange(1_000, 200_000)
        if draw.random() < 0.5:
            outcome = one_answer(self._server, "你好", timeout_us=timeout_us, **ENDLESS)
        else:
            with StreamCall(self._server, "你好", timeout_us=timeout_us, **ENDLESS) as call:
                outcome = call.outcome()
        assert isinstance(outcome, Refusal)
        if outcome.status in ("CANCELLED", "deadline_exceeded"):
            assert "deadline of " in outcome.text
            return "late"
        return refused(outcome)

    def _bad(self, draw: random.Random) -> str:
        text, options = draw.choice(BAD_INPUTS)
        if draw.random() < 0.5:
            outcome = one_answer(self._server, text, **options)
        else:
            with StreamCall(self._server, text, **options) as call:
                outcome = call.outcome()
        assert isinstance(outcome, Refusal)
        assert outcome.status in ("INVALID_ARGUMENT", "invalid_request"), outcome
        return "bad"


def one_answer(server: RunningServer, text: str, **arguments: Any) -> bytes | Refusal:
    try:
        (speech,) = server.speak(text, **arguments)
    except InferenceServerException as error:
        return refusal_of(error)
    return speech.audio


def refused(outcome: Refusal) -> str:
    assert outcome.status in ("UNAVAILABLE", "overloaded"), outcome
    assert "waiting queue is full" in outcome.text
    return "refused"


@dataclass(frozen=True)
class Resources:
    """What the processes of a server hold."""

    shared_memory_bytes: int
    num_stub_threads: int
    num_server_threads: int
    num_file_descriptors: int

    @classmethod
    def of(cls, pid: int) -> Resources:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        stubs = [process for process in processes if process.name().startswith(STUB_NAME[:15])]
        assert len(stubs) == len(PYTHON_MODELS)
        inodes = {
            (path.stat().st_ino, path.stat().st_blocks * 512)
            for process in processes
            for path in map(Path, {region.path for region in process.memory_maps(grouped=True)})
            if path.is_relative_to(SHARED_MEMORY) and path.exists()
        }
        return cls(
            shared_memory_bytes=sum(size for _, size in inodes),
            num_stub_threads=sum(process.num_threads() for process in stubs),
            num_server_threads=sum(p.num_threads() for p in processes if p not in stubs),
            num_file_descriptors=sum(process.num_fds() for process in processes),
        )

    def is_within(self, other: Resources) -> bool:
        return (
            self.shared_memory_bytes <= other.shared_memory_bytes
            and self.num_stub_threads <= other.num_stub_threads
            and self.num_server_threads <= other.num_server_threads + GRPC_SPARE_THREADS
            and self.num_file_descriptors <= other.num_file_descriptors
        )


@pytest.fixture(scope="module")
def stormy(endless_repository: Path) -> Iterator[tuple[RunningServer, int]]:
    """A server with a short queue, and its process id."""
    with (
        serve_in_background(
            endless_repository,
            arguments=("--max-num-seqs=4",),
            environment={**os.environ, "CHATTTS_MAX_WAITING": "4"},
            timeout_s=START_TIMEOUT_S,
        ) as server,
        grpcclient.InferenceServerClient(server.grpc) as client,
    ):
        running = RunningServer(
            server.grpc, server.http, server.metrics, endless_repository, client
        )
        yield running, server.process.pid


def is_at_rest(server: RunningServer) -> bool:
    return not any(
        server.metric(f"chattts_{name}")
        for name in ("running_requests", "waiting_requests", "slots_used")
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < end_s, what


def comes_back(pid: int, before: Resources) -> bool:
    """Whether the server soon holds no more than before."""
    end_s = time.monotonic() + SETTLE_S
    while not Resources.of(pid).is_within(before):
        if time.monotonic() > end_s:
            return False
    return True


def test_after_a_storm_every_call_has_ended_once_and_nothing_is_left(
    stormy: tuple[RunningServer, int],
):
    server, pid = stormy
    expected = {wish: wish.speak(server) for wish in WISHES}
    storm = Storm(server, expected)
    storm.run(NUM_WARM_UP_CALLS, SEED)
    wait_until(lambda: is_at_rest(server), "calls of the warm-up run on")

    for seed in range(SEED + 1, SEED + 1 + MAX_STORMS):
        before = Resources.of(pid)
        outcomes = storm.run(NUM_CALLS, seed)
        assert outcomes.total() == NUM_CALLS
        ways = ("ok", "cancelled", "left", "late", "bad", "refused")
        assert all(outcomes[way] > NUM_CALLS / 200 for way in ways), outcomes
        wait_until(lambda: is_at_rest(server), "calls run on")
        if comes_back(pid, before):
            break
    else:  # one that is the worst yet may leave a larger pool; what leaks grows in every one
        pytest.fail(f"every storm leaves more: {before}, {Resources.of(pid)}")
    assert {wish: wish.speak(server) for wish in WISHES} == expected
