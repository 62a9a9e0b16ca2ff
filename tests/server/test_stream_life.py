"""What ends a request before its time on the real server, and that its slot is free again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
from stream_calls import Chunk, StreamCall, stream_error
from triton_calls import START_TIMEOUT_S, Refusal, RunningServer, running_server, text_tensors
from tritonclient.utils import InferenceServerException

from chattts_client import AsyncChatTTSClient, AudioChunk, OverloadedError
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.tensors import GPT, PREPROCESS

# The likeliest code each time, which is never the end code of an `endless_repository`.
ENDLESS = {"SEED": 0, "MAX_NEW_TOKENS": 2048, "REPETITION_PENALTY": 1.0, "TEMPERATURE": 0.01}
SHORT = {"SEED": 1, "MAX_NEW_TOKENS": 20}
DEFAULT_TIMEOUT_MS = 700  # 2,048 steps of the small model take 2 s and more
PATIENT_US = 20_000_000
IDLE_TIMEOUT_MS = 500
MAX_STREAMS = 3
WAIT_S = 20.0


@pytest.fixture(scope="module")
def hasty_server(endless_repository: Path) -> Iterator[RunningServer]:
    """One slot, a short queue, few streams, and little patience."""
    environment = {
        **os.environ,
        "CHATTTS_MAX_WAITING": "8",
        "CHATTTS_MAX_STREAMS": str(MAX_STREAMS),
        "CHATTTS_DEFAULT_TIMEOUT_MS": str(DEFAULT_TIMEOUT_MS),
        "CHATTTS_STREAM_IDLE_TIMEOUT_MS": str(IDLE_TIMEOUT_MS),
    }
    with running_server(endless_repository, "--max-num-seqs=1", environment=environment) as running:
        yield running


@contextlib.contextmanager
def running_stream(server: RunningServer) -> Iterator[StreamCall]:
    """A stream that has begun; those cancelled just before may still hold their places."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with StreamCall(
            server, "你好", MODE="low_latency", timeout_us=PATIENT_US, **ENDLESS
        ) as call:
            if isinstance(call.next(), Chunk):
                yield call
                return
    raise AssertionError("no stream is let in")


def speak_when_let_in(server: RunningServer, options: dict[str, Any], **arguments: Any) -> None:
    """A whole stream; those cancelled just before may still hold their places."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        with StreamCall(server, "再见", timeout_us=PATIENT_US, **arguments, **options) as call:
            if not isinstance(outcome := call.outcome(), Refusal):
                return
        assert "streams are open" in outcome.text
    raise AssertionError("no stream is let in")


def wait_for_slot(server: RunningServer) -> None:
    """Until the only slot is free; a server without a queue refuses before that."""
    end_s = time.monotonic() + WAIT_S
    while isinstance(response := first_response(server), Refusal):
        assert "waiting queue is full" in response.text
        assert time.monotonic() < end_s, "the slot is not free"


def first_response(server: RunningServer) -> Chunk | Refusal:
    with StreamCall(server, "再见", **SHORT) as call:
        response = call.next()
        while isinstance(response, Chunk) and not response.is_last:
            response = call.next()
        return response


def test_a_cancelled_stream_frees_its_slot(one_slot_server: RunningServer):
    with StreamCall(one_slot_server, "你好", MODE="low_latency", **ENDLESS) as call:
        call.chunk()
        assert isinstance(first_response(one_slot_server), Refusal)
        call.cancel()

        wait_for_slot(one_slot_server)


def test_a_stream_that_is_cancelled_at_once_frees_its_slot(one_slot_server: RunningServer):
    for _ in range(5):
        StreamCall(one_slot_server, "你好", **ENDLESS).cancel()

    wait_for_slot(one_slot_server)


def test_a_full_server_refuses_a_stream_at_once(one_slot_server: RunningServer):
    with StreamCall(one_slot_server, "你好", MODE="low_latency", **ENDLESS) as call:
        call.chunk()

        refusal = stream_error(one_slot_server, "再见")

    assert refusal.status == "overloaded"
    assert refusal.text.startswith("gpt: waiting queue is full: 1 running, 0 waiting")
    wait_for_slot(one_slot_server)


def test_a_stream_ends_at_its_deadline_and_its_slot_is_free(one_slot_server: RunningServer):
    expected = one_slot_server.speak_one("再见", **SHORT)

    refusal = stream_error(one_slot_server, "你好", timeout_us=400_000, **ENDLESS)

    assert one_slot_server.speak_one("再见", **SHORT) == expected
    assert refusal.status == "deadline_exceeded"
    match = re.fullmatch(r"\w+: deadline of 400 ms exceeded after (\d+) steps", refusal.text)
    assert match
    assert 0 < int(match[1]) < ENDLESS["MAX_NEW_TOKENS"]


def test_a_request_without_a_timeout_has_the_servers(hasty_server: RunningServer):
    with ThreadPoolExecutor(1) as pool:
        unary = pool.submit(hasty_server.refused, "你好", **ENDLESS)
        streamed = stream_error(hasty_server, "你好", **ENDLESS)

    wanted = rf"gpt: deadline of {DEFAULT_TIMEOUT_MS} ms exceeded after \d+ steps"
    assert (streamed.status, unary.result().status) == ("deadline_exceeded", "CANCELLED")
    assert re.search(wanted, streamed.text)
    assert re.fullmatch(f"in ensemble 'chattts', {wanted}", unary.result().text)


def test_a_deadline_ends_what_still_waits(hasty_server: RunningServer):
    with running_stream(hasty_server):
        refusal = stream_error(hasty_server, "再见", timeout_us=200_000, **SHORT)

    assert refusal == Refusal("deadline_exceeded", "gpt: deadline of 200 ms exceeded after 0 steps")


def test_more_streams_than_may_be_open_are_refused_at_once(hasty_server: RunningServer):
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(StreamCall(hasty_server, "你好", timeout_us=PATIENT_US, **ENDLESS))
            for _ in range(MAX_STREAMS + 1)
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            answers = (done.result() for done in as_completed([pool.submit(c.next) for c in calls]))
            # Of those let in, one has the slot and the others wait for its end.
            refusal = next(answer for answer in answers if isinstance(answer, Refusal))
            for call in calls:
                call.cancel()

    assert refusal == Refusal(
        "overloaded", f"chattts_stream: {MAX_STREAMS} streams are open (max_streams {MAX_STREAMS})"
    )


def test_a_server_outlives_streams_that_are_left_at_the_same_time_and_keeps_nothing_of_them(
    endless_repository: Path,
):
    """With Triton's metadata `triton_grpc_error`, tritonserver 2.51 dies of a few of these."""

    async def leave_at_the_first_answer(client: AsyncChatTTSClient) -> None:
        calls = [asyncio.ensure_future(first_chunk(client)) for _ in range(MAX_STREAMS + 1)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in calls:
            call.cancel()
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, AudioChunk | OverloadedError | asyncio.CancelledError), answer

    async def leave_many_times(url: str) -> None:
        async with AsyncChatTTSClient(url, timeout_s=60) as client:
            for _ in range(100):
                await leave_at_the_first_answer(client)

    with serve_in_background(
        endless_repository,
        arguments=["--max-num-seqs=1", "--exit-timeout=600"],
        environment={**os.environ, "CHATTTS_MAX_STREAMS": str(MAX_STREAMS)},
        timeout_s=START_TIMEOUT_S,
    ) as server:
        asyncio.run(leave_many_times(server.grpc))
        server.process.terminate()
        # A model of which Triton still holds a request is not unloaded before the exit timeout.
        assert server.process.wait(START_TIMEOUT_S) == 0


async def first_chunk(client: AsyncChatTTSClient) -> AudioChunk:
    options: dict[str, Any] = {name.lower(): value for name, value in ENDLESS.items()}
    async with contextlib.aclosing(client.stream("你好", **options)) as chunks:
        return await anext(chunks)


def test_who_waits_is_served_by_priority(hasty_server: RunningServer):
    order: list[int] = []

    def speak(priority: int) -> None:
        # Long enough that who is served first has also closed its call first.
        options = ENDLESS | {"MAX_NEW_TOKENS": 400}
        speak_when_let_in(hasty_server, options, parameters={"queue_priority": priority})
        order.append(priority)

    with running_stream(hasty_server) as running, ThreadPoolExecutor(2) as pool:
        wait_until_waiting(hasty_server, 0)  # what the server tells may be of the test before
        later = pool.submit(speak, 2)
        wait_until_waiting(hasty_server, 1)
        sooner = pool.submit(speak, 0)
        wait_until_waiting(hasty_server, 2)
        running.cancel()
        later.result()
        sooner.result()

    assert order == [0, 2]


def wait_until_waiting(server: RunningServer, number: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while server.metric("chattts_waiting_requests") != number:
        assert time.monotonic() < end_s, f"{number} requests do not wait"


class TestAnotherReader:
    """`gpt` as anybody may call it, with a stream that `chattts_stream` has not opened."""

    @pytest.fixture
    def prompt(self, hasty_server: RunningServer) -> dict[str, Any]:
        """The prompt of an endless text, with its names as `gpt` takes them."""
        outputs = hasty_server.call("preprocess", text_tensors("你好", **ENDLESS))
        known = {spec.name for spec in GPT.inputs}
        assert {spec.name for spec in PREPROCESS.outputs} - known == {
            "SEED_USED",
            "PAUSE_SAMPLES",
            "TRIM",
        }
        return {name: values for name, values in outputs.items() if name in known}

    def test_a_stream_that_nobody_reads_is_given_up(
        self, hasty_server: RunningServer, prompt: dict[str, Any]
    ):
        open_it = prompt | read("abandoned", min_codes=1)
        opened = hasty_server.call("gpt", open_it, timeout_us=PATIENT_US)

        # Its slot is the only one.
        speak_when_let_in(hasty_server, SHORT)
        end_s = time.monotonic() + WAIT_S
        while refusal := refusal_to_open(hasty_server, open_it):  # until its name is free again
            assert "wanted one that is not open" in refusal
            assert time.monotonic() < end_s, "it is not given up"
        hasty_server.call("gpt", read("abandoned"))

        assert int(opened["NUM_CODES"][0, 0]) >= 1

    def test_what_is_read_goes_on_where_the_cursor_is(
        self, hasty_server: RunningServer, prompt: dict[str, Any]
    ):
        first = hasty_server.call("gpt", prompt | read("read", min_codes=4))
        num_read = int(first["NUM_CODES"][0, 0])

        more = hasty_server.call("gpt", read("read", cursor=num_read - 2, min_codes=4))
        hasty_server.call("gpt", read("read"))

        assert num_read >= 4
        assert int(more["NUM_CODES"][0, 0]) >= 4
        assert (more["CODES"][0, :2] == first["CODES"][0, num_read - 2 :]).all()
        assert first["FINISH_REASON"][0, 0] == more["FINISH_REASON"][0, 0] == b""

    @pytest.mark.parametrize(
        ("tensors", "text"),
        [
            ({"STREAM_ID": ""}, "STREAM_ID: got b'', wanted one name of 1 to 128 bytes"),
            ({"STREAM_ID": "x" * 129}, "STREAM_ID: got b'xxx"),
            ({"STREAM_ID": b"\xff"}, "STREAM_ID: got bytes that are not UTF-8"),
            ({"STREAM_ID": "nobody's"}, 'STREAM_ID: got "nobody\'s", wanted that of a stream'),
            ({"STREAM_ID": "open", "SEGMENT": 1}, "SEGMENT: got 1, wanted 0 to 0 at this time"),
            (
                {"STREAM_ID": "open", "SEGMENT": -1},
                "SEGMENT: got -1, wanted one value of 0 to",
            ),
            ({"STREAM_ID": "open", "CURSOR": 4000}, "CURSOR: got 4000, wanted one value of 0 to"),
            ({"STREAM_ID": "open", "MIN_CODES": -1}, "MIN_CODES: got -1, wanted one value of 0 to"),
        ],
    )
    def test_a_bad_read_is_refused_and_the_stream_goes_on(
        self,
        hasty_server: RunningServer,
        prompt: dict[str, Any],
        tensors: dict[str, Any],
        text: str,
    ):
        hasty_server.call("gpt", prompt | read("open", min_codes=1))

        refusal = hasty_server.refusal(
            "gpt", {"MIN_CODES": [[1]]} | {name: [[encoded(v)]] for name, v in tensors.items()}
        )

        hasty_server.call("gpt", read("open", cursor=1, min_codes=1))
        hasty_server.call("gpt", read("open"))
        assert refusal.status == "INVALID_ARGUMENT"
        assert refusal.text.startswith(f"gpt: {text}")

    def test_a_name_that_is_open_cannot_be_opened_again(
        self, hasty_server: RunningServer, prompt: dict[str, Any]
    ):
        hasty_server.call("gpt", prompt | read("mine", min_codes=1))

        refusal = hasty_server.refusal("gpt", prompt | read("mine", min_codes=1))

        hasty_server.call("gpt", read("mine"))
        assert refusal.status == "INVALID_ARGUMENT"
        assert refusal.text.startswith("gpt: STREAM_ID: got 'mine', wanted one that is not open")

    def test_a_call_without_a_prompt_is_refused_by_the_name_of_what_is_missing(
        self, hasty_server: RunningServer, prompt: dict[str, Any]
    ):
        del prompt["SPEAKER_EMBEDDING"]

        refusal = hasty_server.refusal("gpt", prompt)

        assert refusal == Refusal("INVALID_ARGUMENT", "gpt: SPEAKER_EMBEDDING: missing")


def refusal_to_open(server: RunningServer, tensors: dict[str, Any]) -> str:
    """Why a stream cannot be opened; empty where it was."""
    try:
        server.call("gpt", tensors, timeout_us=PATIENT_US)
    except InferenceServerException as error:
        return str(error.message())
    return ""


def read(name: str, *, cursor: int = 0, min_codes: int = 0) -> dict[str, Any]:
    return {
        "STREAM_ID": [[name.encode()]],
        "SEGMENT": [[0]],
        "CURSOR": [[cursor]],
        "MIN_CODES": [[min_codes]],
    }


def encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
