"""Streams that are left early, many at once, and slow readers: what the server and threads see."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing

import numpy as np
import pytest
from fake_streams import Step, silence
from fake_triton import WAIT_S, FakeTriton, Inputs, fake_samples

from chattts_client import (
    AsyncChatTTSClient,
    AudioChunk,
    ChatTTSClient,
    RequestCancelledError,
    join_chunks,
)

LARGE_SAMPLES = 175_000  # about 1 MB a chunk, with both forms


def first_chunk_only(inputs: Inputs) -> list[Step]:
    """A stream that goes on for ever after its first chunk."""
    return [silence(0), threading.Event()]


def leave_loop(client: ChatTTSClient) -> None:
    for _ in client.stream("a"):
        break


def close_generator(client: ChatTTSClient) -> None:
    with closing(client.stream("a")) as stream:
        next(stream)


def drop_generator(client: ChatTTSClient) -> None:
    stream = client.stream("a")
    next(stream)
    del stream
    gc.collect()


def fail_in_loop(client: ChatTTSClient) -> None:
    def read() -> None:
        for chunk in client.stream("a"):
            _ = 1 / chunk.index

    with pytest.raises(ZeroDivisionError):
        read()


@pytest.mark.parametrize("leave", [leave_loop, close_generator, drop_generator, fail_in_loop])
def test_a_stream_that_is_left_early_is_cancelled_at_the_server(
    triton: FakeTriton, client: ChatTTSClient, leave: Callable[[ChatTTSClient], None]
):
    triton.stream_steps = first_chunk_only

    leave(client)

    assert triton.stream_cancelled.wait(WAIT_S)


async def leave_loop_async(stream: AsyncGenerator[AudioChunk, None]) -> None:
    async with aclosing(stream):
        async for _ in stream:
            break


async def close_generator_async(stream: AsyncGenerator[AudioChunk, None]) -> None:
    await anext(stream)
    await stream.aclose()


async def drop_generator_async(stream: AsyncGenerator[AudioChunk, None]) -> None:
    await anext(stream)
    del stream
    gc.collect()


async def cancel_task(stream: AsyncGenerator[AudioChunk, None]) -> None:
    arrived = asyncio.Event()

    async def read() -> None:
        async for _ in stream:
            arrived.set()

    task = asyncio.create_task(read())
    await asyncio.wait_for(arrived.wait(), WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_out(stream: AsyncGenerator[AudioChunk, None]) -> None:
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.05)


@pytest.mark.parametrize(
    "leave",
    [leave_loop_async, close_generator_async, drop_generator_async, cancel_task, time_out],
)
def test_a_stream_that_is_left_early_with_asyncio_is_cancelled_at_the_server(
    triton: FakeTriton, leave: Callable[[AsyncGenerator[AudioChunk, None]], object]
):
    cancelled_before_close = []
    triton.stream_steps = first_chunk_only

    async def main() -> None:
        async with AsyncChatTTSClient(triton.url, timeout_s=WAIT_S) as client:
            await leave(client.stream("a"))  # type: ignore[misc]
            # Before the client is closed, which would cancel everything.
            seen = await asyncio.to_thread(triton.stream_cancelled.wait, WAIT_S)
            cancelled_before_close.append(seen)

    asyncio.run(main())

    assert cancelled_before_close == [True]


def test_a_stream_that_was_read_to_its_end_is_not_cancelled(
    triton: FakeTriton, client: ChatTTSClient
):
    join_chunks(client.stream("a"))

    assert triton.call_ended.wait(WAIT_S)
    assert not triton.stream_cancelled.is_set()


def test_a_stream_of_which_no_chunk_is_asked_for_is_no_call(
    triton: FakeTriton, client: ChatTTSClient
):
    client.stream("a").close()
    client.stream("b")

    client.synthesize("c")
    assert [request.model_name for request in triton.requests] == ["chattts"]


def test_closing_the_client_ends_its_streams(triton: FakeTriton):
    triton.stream_steps = first_chunk_only
    client = ChatTTSClient(triton.url, timeout_s=WAIT_S)
    stream = client.stream("a")
    next(stream)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(next, stream)
        client.close()
        error = pending.exception(WAIT_S)

    assert isinstance(error, RequestCancelledError)
    assert triton.stream_cancelled.wait(WAIT_S)


def test_closing_the_client_ends_its_streams_with_asyncio(triton: FakeTriton):
    triton.stream_steps = first_chunk_only

    async def main() -> None:
        client = AsyncChatTTSClient(triton.url, timeout_s=WAIT_S)
        stream = client.stream("a")
        await anext(stream)
        pending = asyncio.ensure_future(anext(stream))
        await client.close()
        with pytest.raises(RequestCancelledError):
            await pending

    asyncio.run(main())

    assert triton.stream_cancelled.wait(WAIT_S)


def all_at_once(triton: FakeTriton, num_streams: int) -> None:
    """Hold each stream behind its first chunk until all of them have had theirs."""
    barrier = threading.Barrier(num_streams)
    whole = triton.stream_steps

    def steps(inputs: Inputs) -> Iterator[Step]:
        first, *others = whole(inputs)
        yield first
        barrier.wait(WAIT_S)
        yield from others

    triton.stream_steps = steps


def test_one_client_has_several_streams_open_without_mixing_them_up(
    triton: FakeTriton, client: ChatTTSClient
):
    all_at_once(triton, 6)

    with ThreadPoolExecutor(6) as pool:
        audios = list(pool.map(lambda n: join_chunks(client.stream("ab" * n, seed=n)), range(1, 7)))

    for number, audio in enumerate(audios, start=1):
        assert np.array_equal(audio.samples, fake_samples("ab" * number, number))


def test_one_thread_reads_several_streams_in_turn(triton: FakeTriton, client: ChatTTSClient):
    all_at_once(triton, 3)
    streams = [client.stream("abc", seed=seed) for seed in range(3)]

    rounds = list(zip(*streams, strict=True))

    for seed in range(3):
        audio = join_chunks(chunks[seed] for chunks in rounds)
        assert np.array_equal(audio.samples, fake_samples("abc", seed))


def test_one_asyncio_client_has_several_streams_open_without_mixing_them_up(triton: FakeTriton):
    all_at_once(triton, 6)

    async def main() -> None:
        async with AsyncChatTTSClient(triton.url, timeout_s=WAIT_S) as client:

            async def samples(number: int) -> np.ndarray:
                return join_chunks(
                    [chunk async for chunk in client.stream("ab" * number, seed=number)]
                ).samples

            for number, joined in enumerate(
                await asyncio.gather(*map(samples, range(1, 7))), start=1
            ):
                assert np.array_equal(joined, fake_samples("ab" * number, number))

    asyncio.run(main())


def test_streams_leave_no_thread_behind(triton: FakeTriton, client: ChatTTSClient):
    join_chunks(client.stream("a"))
    before = set(threading.enumerate())

    for _ in range(5):
        join_chunks(client.stream("a"))
    triton.stream_steps = first_chunk_only
    streams = [client.stream("a") for _ in range(5)]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.close()

    # Those of the fake server stay; it runs its calls in a pool of its own.
    ours = [
        thread
        for thread in set(threading.enumerate()) - before
        if not thread.name.startswith("ThreadPoolExecutor")
    ]
    for thread in ours:
        thread.join(WAIT_S)
    assert [thread for thread in ours if thread.is_alive()] == []


def endless(inputs: Inputs) -> Iterator[Step]:
    index = 0
    while True:
        yield silence(index, num_samples=LARGE_SAMPLES)
        index += 1


def hundred_chunks(triton: FakeTriton) -> threading.Event:
    """Have a stream of 100 MB, and tell when 40 MB of it have left."""
    is_far_ahead = threading.Event()

    def steps(inputs: Inputs) -> Iterator[Step]:
        for index in range(100):
            if index == 40:
                is_far_ahead.set()
            yield silence(index, num_samples=LARGE_SAMPLES, reason="stop" if index == 99 else "")

    triton.stream_steps = steps
    return is_far_ahead


def test_a_reader_that_is_slow_holds_the_server_up(triton: FakeTriton, client: ChatTTSClient):
    is_far_ahead = hundred_chunks(triton)
    stream = client.stream("a")
    next(stream)

    assert not is_far_ahead.wait(1.0)
    assert [chunk.index for chunk in stream] == list(range(1, 100))


def test_a_reader_that_is_slow_holds_the_server_up_with_asyncio(triton: FakeTriton):
    is_far_ahead = hundred_chunks(triton)

    async def main() -> None:
        async with AsyncChatTTSClient(triton.url, timeout_s=WAIT_S) as client:
            stream = client.stream("a")
            await anext(stream)
            assert not await asyncio.to_thread(is_far_ahead.wait, 1.0)
            assert [chunk.index async for chunk in stream] == list(range(1, 100))

    asyncio.run(main())


def test_closing_a_stream_with_much_unread_does_not_hang(triton: FakeTriton, client: ChatTTSClient):
    triton.stream_steps = endless
    stream = client.stream("a")
    next(stream)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result(WAIT_S)

    assert triton.stream_cancelled.wait(WAIT_S)
