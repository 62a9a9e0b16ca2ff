"""What a stream brings, in both clients: chunks as they are made, and each way it can fail."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fake_triton
import grpc
import numpy as np
import pytest
from fake_streams import Step, chunk_of, chunks_of, silence
from fake_triton import WAIT_S, FakeTriton, fake_samples

from chattts_client import (
    AsyncChatTTSClient,
    AudioChunk,
    ChatTTSClient,
    ChatTTSClientError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServerUnreachableError,
    join_chunks,
)

# Reads a stream to its end; gives the chunks into the list, so that those before an error are kept.
Read = Callable[..., None]


def read_sync(url: str, text: str, into: list[AudioChunk], **arguments: Any) -> None:
    with ChatTTSClient(url, timeout_s=WAIT_S) as client:
        for chunk in client.stream(text, **arguments):
            into.append(chunk)


def read_async(url: str, text: str, into: list[AudioChunk], **arguments: Any) -> None:
    async def main() -> None:
        async with AsyncChatTTSClient(url, timeout_s=WAIT_S) as client:
            async for chunk in client.stream(text, **arguments):
                into.append(chunk)

    asyncio.run(main())


@pytest.fixture(params=[read_sync, read_async], ids=["sync", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    return request.param  # type: ignore[no-any-return]


def test_a_stream_brings_the_audio_of_a_single_call_in_chunks(
    read: Read, triton: FakeTriton, client: ChatTTSClient
):
    chunks: list[AudioChunk] = []

    read(triton.url, "你好，世界。", chunks, seed=42, mode="quality")

    whole = client.synthesize("你好，世界。", seed=42)
    joined = join_chunks(chunks)
    assert len(chunks) == 7
    assert np.array_equal(joined.samples, whole.samples)
    assert joined.pcm16 is not None
    assert np.array_equal(joined.pcm16, whole.pcm16)
    assert (joined.seed, joined.finish_reason, joined.sample_rate) == (42, "stop", 24_000)


def test_only_the_last_chunk_tells_how_the_audio_ended(read: Read, triton: FakeTriton):
    chunks: list[AudioChunk] = []

    read(triton.url, "0123456789", chunks, max_new_tokens=3)

    assert [chunk.index for chunk in chunks] == [0, 1, 2]
    assert [chunk.is_last for chunk in chunks] == [False, False, True]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "length"]
    assert [chunk.refined_text for chunk in chunks] == ["", "", "一个"]
    assert [chunk.warnings for chunk in chunks] == [(), (), ("refine_refused",)]
    assert {(chunk.mode, chunk.sample_rate) for chunk in chunks} == {("low_latency", 24_000)}
    assert chunks[0].duration_s == 512 / 24_000


def test_every_option_of_a_stream_reaches_the_streaming_model(read: Read, triton: FakeTriton):
    read(triton.url, "a", [], mode="auto", seed=7, trim=True, queue_priority=2, timeout_s=12.5)

    request = triton.requests[-1]
    assert request.model_name == "chattts_stream"
    assert triton.last_inputs == {
        "TEXT": ("BYTES", [1, 1], [b"a"]),
        "SEED": ("INT64", [1, 1], [7]),
        "TRIM": ("BOOL", [1, 1], [True]),
        "MODE": ("BYTES", [1, 1], [b"auto"]),
    }
    assert request.parameters["timeout"].int64_param == 12_500_000
    assert request.parameters["queue_priority"].int64_param == 2
    assert request.parameters["caller_closes"].bool_param


def test_what_is_not_set_is_not_sent(read: Read, triton: FakeTriton):
    read(triton.url, "a", [])

    assert list(triton.last_inputs) == ["TEXT"]
    assert sorted(triton.requests[-1].parameters) == ["caller_closes", "timeout"]


def test_what_cannot_be_sent_is_refused_before_the_first_chunk_is_asked_for(triton: FakeTriton):
    async def stream_async(**arguments: Any) -> None:
        async with AsyncChatTTSClient(triton.url) as client:
            client.stream("a", **arguments)

    with ChatTTSClient(triton.url) as client:
        with pytest.raises(InvalidRequestError, match=r"^SEED: got 1\.5"):
            client.stream("a", seed=1.5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=r"^timeout_s: got 0"):
            client.stream("a", timeout_s=0)
        with pytest.raises(InvalidRequestError, match=r"^MODE: got 3"):
            client.stream("a", mode=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^queue_priority: got 'first'"):
        asyncio.run(stream_async(queue_priority="first"))
    assert triton.requests == []


def test_a_chunk_is_given_out_while_the_next_one_is_being_made(
    client: ChatTTSClient, triton: FakeTriton
):
    made = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), made, silence(1, reason="stop")]

    stream = client.stream("a")
    first = next(stream)
    assert not first.is_last

    made.set()
    assert [chunk.index for chunk in stream] == [1]


def test_a_chunk_is_given_out_while_the_next_one_is_being_made_with_asyncio(triton: FakeTriton):
    made = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), made, silence(1, reason="stop")]

    async def main() -> list[int]:
        async with AsyncChatTTSClient(triton.url, timeout_s=WAIT_S) as client:
            stream = client.stream("a")
            first = await anext(stream)
            made.set()
            return [first.index] + [chunk.index async for chunk in stream]

    assert asyncio.run(main()) == [0, 1]


def test_samples_of_a_chunk_are_owned_and_an_empty_chunk_is_one(read: Read, triton: FakeTriton):
    triton.stream_steps = lambda inputs: [silence(0), silence(1, reason="stop", num_samples=0)]
    chunks: list[AudioChunk] = []

    read(triton.url, "a", chunks)

    chunks[0].samples[:] = 1.0
    assert [len(chunk.samples) for chunk in chunks] == [512, 0]
    assert chunks[1].is_last


def without(chunk: dict[str, np.ndarray], name: str) -> Step:
    return {key: values for key, values in chunk.items() if key != name}


TWO = chunks_of(fake_samples("a", 1))

BROKEN: list[tuple[list[Step], int, str]] = [
    ([TWO[0], silence(2, reason="stop")], 1, "CHUNK_INDEX: got 2 from the server, wanted 1"),
    ([TWO[0], TWO[0]], 1, "CHUNK_INDEX: got 0 from the server, wanted 1"),
    ([TWO[1], TWO[0]], 0, "CHUNK_INDEX: got 1 from the server, wanted 0"),
    ([TWO[0], TWO[1] | {"AUDIO": np.full((1, 256), np.nan, np.float32)}], 1, "AUDIO: got NaN"),
    ([silence(0, reason="abort")], 0, "FINISH_REASON: got 'abort'"),
    ([chunk_of(np.zeros(9), 0, mode="auto")], 0, "MODE_USED: got 'auto' from the server"),
    ([without(TWO[0], "MODE_USED")], 0, "MODE_USED: missing"),
    ([without(TWO[0], "AUDIO")], 0, "AUDIO: missing"),
    ([TWO[0] | {"PCM16": np.zeros((1, 9), np.int16)}], 0, "PCM16: got int16 [1, 9]"),
    ([silence(0, reason="stop", num_samples=0)], 0, "AUDIO: got no samples"),
]


@pytest.mark.parametrize(("steps", "num_good", "message"), BROKEN)
def test_a_stream_that_breaks_the_contract_is_cancelled_and_a_generation_error(
    read: Read, triton: FakeTriton, steps: list[Step], num_good: int, message: str
):
    triton.stream_steps = lambda inputs: [*steps, threading.Event()]
    chunks: list[AudioChunk] = []

    with pytest.raises(GenerationError) as caught:
        read(triton.url, "a", chunks)

    assert str(caught.value).startswith(message)
    assert len(chunks) == num_good
    assert triton.call_ended.wait(WAIT_S)


def test_a_stream_without_pcm16_is_whole(read: Read, triton: FakeTriton):
    triton.stream_steps = lambda inputs: [without(chunk, "PCM16") for chunk in TWO]
    chunks: list[AudioChunk] = []

    read(triton.url, "a", chunks)

    assert join_chunks(chunks).pcm16 is None


@pytest.mark.parametrize("num_chunks", [0, 1])
def test_a_stream_that_ends_without_its_last_chunk_is_unreachable(
    read: Read, triton: FakeTriton, num_chunks: int
):
    triton.stream_steps = lambda inputs: [silence(index) for index in range(num_chunks)]

    with pytest.raises(ServerUnreachableError) as caught:
        read(triton.url, "a", [])

    assert str(caught.value) == (
        f"{triton.url}: the stream ended after {num_chunks} chunks, without the last one"
    )


ERRORS: list[tuple[Step, type[ChatTTSClientError], str]] = [
    (
        (grpc.StatusCode.INVALID_ARGUMENT, "preprocess: TEXT: got ''."),
        InvalidRequestError,
        "preprocess: TEXT: got ''.",
    ),
    (
        (grpc.StatusCode.UNAVAILABLE, "gpt: waiting queue is full"),
        OverloadedError,
        "gpt: waiting queue is full",
    ),
    (
        (grpc.StatusCode.UNAVAILABLE, "chattts_stream: 64 streams are open (max_streams 64)"),
        OverloadedError,
        "chattts_stream: 64 streams are open (max_streams 64)",
    ),
    (
        (grpc.StatusCode.CANCELLED, "gpt: deadline of 5 ms exceeded after 1 steps"),
        DeadlineExceededError,
        "gpt: deadline of 5 ms exceeded after 1 steps",
    ),
    ((grpc.StatusCode.INTERNAL, "broken"), GenerationError, "broken"),
    ((grpc.StatusCode.CANCELLED, "dropped"), RequestCancelledError, "dropped"),
]


@pytest.mark.parametrize(("step", "kind", "message"), ERRORS)
@pytest.mark.parametrize("num_good", [0, 2])
def test_an_error_ends_the_stream_behind_its_good_chunks_and_the_next_one_succeeds(
    client: ChatTTSClient,
    triton: FakeTriton,
    step: Step,
    kind: type[ChatTTSClientError],
    message: str,
    num_good: int,
):
    triton.stream_steps = lambda inputs: [*(silence(index) for index in range(num_good)), step]

    stream = client.stream("a")
    good = [next(stream) for _ in range(num_good)]
    with pytest.raises(ChatTTSClientError) as caught:
        next(stream)

    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert len(good) == num_good
    triton.stream_steps = lambda inputs: TWO
    assert join_chunks(client.stream("a")).finish_reason == "stop"


@pytest.mark.parametrize(("step", "kind", "message"), ERRORS)
def test_an_error_of_a_stream_is_the_same_with_asyncio(
    triton: FakeTriton, step: Step, kind: type[ChatTTSClientError], message: str
):
    triton.stream_steps = lambda inputs: [silence(0), step]
    chunks: list[AudioChunk] = []

    with pytest.raises(ChatTTSClientError) as caught:
        read_async(triton.url, "a", chunks)

    assert (type(caught.value), str(caught.value)) == (kind, message)
    assert len(chunks) == 1


@pytest.mark.parametrize("num_good", [0, 1])
def test_a_stream_that_is_late_ends_at_its_timeout_at_both_ends(
    read: Read, triton: FakeTriton, num_good: int
):
    triton.stream_steps = lambda inputs: [
        *(silence(index) for index in range(num_good)),
        threading.Event(),
    ]
    chunks: list[AudioChunk] = []

    with pytest.raises(DeadlineExceededError) as caught:
        read(triton.url, "a", chunks, timeout_s=0.3)

    assert str(caught.value) == f"{triton.url}: no end of the stream within 0.3 s"
    assert len(chunks) == num_good
    assert triton.stream_cancelled.wait(WAIT_S)


def test_the_timeout_is_for_the_whole_stream_and_not_for_a_chunk(read: Read, triton: FakeTriton):
    never = threading.Event()

    def steps_forever(inputs: object) -> Any:
        index = 0
        while not never.wait(0.1):
            yield silence(index)
            index += 1

    triton.stream_steps = steps_forever
    chunks: list[AudioChunk] = []

    with pytest.raises(DeadlineExceededError):
        read(triton.url, "a", chunks, timeout_s=0.5)

    never.set()
    assert len(chunks) >= 1


def test_a_server_killed_in_the_middle_is_unreachable(read: Read):
    with subprocess.Popen(
        [sys.executable, fake_triton.__file__], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"127.0.0.1:{int(server.stdout.readline())}"
        chunks = KillAtFirst(server)
        try:
            with ThreadPoolExecutor(1) as pool:
                error = pool.submit(read, url, "a", chunks).exception(WAIT_S)
        finally:
            server.kill()

    assert len(chunks) == 1
    assert isinstance(error, ServerUnreachableError)
    assert str(error).startswith(url)


class KillAtFirst(list[AudioChunk]):
    """Kills the server when it gets a chunk of its."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        super().__init__()
        self._server = server

    def append(self, chunk: AudioChunk) -> None:
        super().append(chunk)
        self._server.kill()
