"""Several Tritons behind one gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import grpc
import pytest
from fake_streams import silence
from fake_triton import WAIT_S, FakeTriton
from gateway_harness import pcm16_of, running_gateway, until

from chattts_client import ChatTTSClientError, InvalidRequestError, OptionArguments, OverloadedError
from chattts_triton.gateway.triton_pool import SpeechStream, TritonPool

UNUSED_PORT = "127.0.0.1:1"
QUEUE_FULL = (grpc.StatusCode.UNAVAILABLE, "in ensemble 'chattts', gpt: the waiting queue is full")


@pytest.fixture
def other() -> Iterator[FakeTriton]:
    with FakeTriton() as server:
        yield server


def pool_of(*urls: str, errors: list[ChatTTSClientError] | None = None) -> TritonPool:
    heard = [] if errors is None else errors
    return TritonPool(
        urls, ("chattts",), timeout_s=WAIT_S, probe_interval_s=0.05, on_error=heard.append
    )


async def opened(pool: TritonPool, text: str = "hello") -> SpeechStream:
    return await pool.open("chattts", text, "quality", OptionArguments(seed=1))


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 2 * WAIT_S))


def test_equally_busy_tritons_take_turns(triton: FakeTriton, other: FakeTriton):
    with running_gateway(triton.url, other.url) as gateway:
        for _ in range(4):
            gateway.speak(response_format="pcm")

    assert (len(triton.requests), len(other.requests)) == (2, 2)


def test_the_least_busy_gets_the_next_request(triton: FakeTriton, other: FakeTriton):
    endless = threading.Event()
    for server in (triton, other):
        server.stream_steps = lambda inputs: [silence(0), endless]

    async def main() -> None:
        async with pool_of(triton.url, other.url) as pool:
            streams = [await opened(pool) for _ in range(4)]
            busy = [each for each in streams if each._upstream.url == triton.url]
            for stream in busy:
                await stream.aclose()
            assert [each.num_outstanding for each in pool.upstreams] == [0, 2]
            again = [await opened(pool), await opened(pool)]
            assert [each.num_outstanding for each in pool.upstreams] == [2, 2]
            for stream in (*streams, *again):
                await stream.aclose()
            assert [each.num_outstanding for each in pool.upstreams] == [0, 0]

    run(main())


def test_one_that_is_down_is_made_up_for_and_then_left_out(triton: FakeTriton):
    errors: list[ChatTTSClientError] = []

    async def main() -> None:
        async with pool_of(UNUSED_PORT, triton.url, errors=errors) as pool:
            for _ in range(4):
                stream = await opened(pool)
                assert len([chunk async for chunk in stream]) == 6
                await stream.aclose()
            assert pool.num_up == 1

    run(main())

    assert [error.error_type for error in errors] == ["unreachable"]
    assert len(triton.requests) == 4


def test_one_that_comes_back_is_used_again(triton: FakeTriton):
    async def main(port: int) -> None:
        async with pool_of(f"127.0.0.1:{port}", triton.url) as pool:
            for _ in range(2):
                await (await opened(pool)).aclose()
            assert pool.num_up == 1
            with FakeTriton(port) as back:
                while pool.num_up < 2:
                    await asyncio.sleep(0.02)  # between two looks; the whole has a timeout
                for _ in range(2):
                    await (await opened(pool)).aclose()
                assert len(back.requests) == 1

    with FakeTriton() as gone:
        port = gone.port
    run(main(port))


def test_a_full_queue_is_tried_elsewhere_once_and_is_no_reason_to_be_left_out(
    triton: FakeTriton, other: FakeTriton
):
    triton.stream_steps = lambda inputs: [QUEUE_FULL]

    async def main() -> None:
        async with pool_of(triton.url, other.url) as pool:
            for _ in range(4):
                await (await opened(pool)).aclose()
            other.stream_steps = lambda inputs: [QUEUE_FULL]
            with pytest.raises(OverloadedError):
                await opened(pool)
            assert pool.num_up == 2

    run(main())

    assert len(other.requests) == 5


def test_a_wrong_request_is_not_tried_elsewhere(triton: FakeTriton, other: FakeTriton):
    refusal = (grpc.StatusCode.INVALID_ARGUMENT, "preprocess: VOICE: got 'x', wanted a voice")
    for server in (triton, other):
        server.stream_steps = lambda inputs: [refusal]

    async def main() -> None:
        async with pool_of(triton.url, other.url) as pool:
            with pytest.raises(InvalidRequestError):
                await opened(pool)
            assert [each.num_outstanding for each in pool.upstreams] == [0, 0]

    run(main())

    assert len(triton.requests) + len(other.requests) == 1


def test_a_stream_that_has_begun_is_not_begun_again(triton: FakeTriton, other: FakeTriton):
    broken = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
    for server in (triton, other):
        server.stream_steps = lambda inputs: [silence(0), broken]

    with running_gateway(triton.url, other.url) as gateway:
        answer = gateway.speak()
        assert gateway.metric("chattts_gateway_upstream_errors_total", type="unreachable") == 1

    assert (answer.status, answer.error["code"]) == (503, "upstream_unavailable")
    assert len(triton.requests) + len(other.requests) == 1


def test_with_all_down_the_answer_is_503_and_they_are_tried_again(triton: FakeTriton):
    with FakeTriton() as gone:
        port = gone.port
    with running_gateway(UNUSED_PORT, f"127.0.0.1:{port}") as gateway:
        assert gateway.speak().status == 503
        assert gateway.metric("chattts_gateway_upstreams_up") == 0
        with FakeTriton(port):
            assert until(lambda: gateway.speak().status == 200)


def test_a_caller_who_leaves_while_a_stream_is_opened_leaves_nothing_behind(triton: FakeTriton):
    triton.stream_steps = lambda inputs: [threading.Event()]

    async def main() -> None:
        async with pool_of(triton.url) as pool:
            task = asyncio.create_task(opened(pool))
            await asyncio.to_thread(triton.arrived.wait, WAIT_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert pool.upstreams[0].num_outstanding == 0
            assert await asyncio.to_thread(triton.stream_cancelled.wait, WAIT_S)

    run(main())


def test_the_same_seed_gives_the_same_bytes_whichever_triton_answers(
    triton: FakeTriton, other: FakeTriton
):
    with running_gateway(triton.url, other.url) as gateway:
        bodies = [gateway.speak(seed=5, response_format="pcm").body for _ in range(2)]

    assert bodies[0] == bodies[1]
    assert len(pcm16_of(bodies[0])) == 512 * 6 - 256
    assert (len(triton.requests), len(other.requests)) == (1, 1)
