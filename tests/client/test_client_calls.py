"""Both clients against a gRPC server that answers, refuses, hangs and vanishes."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fake_triton
import grpc
import numpy as np
import pytest
from fake_triton import FIRST_DRAWN_SEED, WAIT_S, FakeTriton, fake_pcm16, fake_samples

from chattts_client import (
    AsyncChatTTSClient,
    Audio,
    ChatTTSClient,
    ChatTTSClientError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServerUnreachableError,
)

Call = Callable[..., list[Audio]]


def call_sync(url: str, texts: list[str], **arguments: Any) -> list[Audio]:
    with ChatTTSClient(url, timeout_s=WAIT_S) as client:
        return client.synthesize_batch(texts, **arguments)


def call_async(url: str, texts: list[str], **arguments: Any) -> list[Audio]:
    async def main() -> list[Audio]:
        async with AsyncChatTTSClient(url, timeout_s=WAIT_S) as client:
            return await client.synthesize_batch(texts, **arguments)

    return asyncio.run(main())


@pytest.fixture(params=[call_sync, call_async], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param  # type: ignore[no-any-return]


def test_one_text_gives_its_audio(client: ChatTTSClient):
    audio = client.synthesize("你好，世界。", seed=42)

    expected = fake_samples("你好，世界。", 42)
    assert np.array_equal(audio.samples, expected)
    assert audio.pcm16 is not None
    assert np.array_equal(audio.pcm16, fake_pcm16(expected))
    assert (audio.sample_rate, audio.seed, audio.finish_reason) == (24_000, 42, "stop")
    assert audio.duration_s == len(expected) / 24_000


def test_one_text_gives_its_audio_with_asyncio(triton: FakeTriton):
    async def main() -> Audio:
        async with AsyncChatTTSClient(triton.url) as client:
            return await client.synthesize("你好", seed=42)

    assert np.array_equal(asyncio.run(main()).samples, fake_samples("你好", 42))


def test_b_82_three_texts_in_one_call_give_three_audios_in_order(call: Call, triton: FakeTriton):
    texts = ["一", "二二二二", "三三"]

    audios = call(triton.url, texts, seed=[1, 2, 3])

    assert len(triton.requests) == 1
    assert triton.last_inputs["TEXT"][1] == [3, 1]
    for text, seed, audio in zip(texts, [1, 2, 3], audios, strict=True):
        assert audio.seed == seed
        assert np.array_equal(audio.samples, fake_samples(text, seed))
        assert audio.pcm16 is not None
        assert len(audio.pcm16) == len(audio.samples)


def test_every_option_reaches_the_server(call: Call, triton: FakeTriton):
    call(
        triton.url,
        ["a"],
        seed=7,
        voice="蘁淰",
        speed=3,
        temperature=0.25,
        top_p=0.5,
        top_k=10,
        repetition_penalty=1.5,
        max_new_tokens=100,
        refine=False,
        lang="zh",
    )

    assert triton.last_inputs == {
        "TEXT": ("BYTES", [1, 1], [b"a"]),
        "SEED": ("INT64", [1, 1], [7]),
        "VOICE": ("BYTES", [1, 1], ["蘁淰".encode()]),
        "SPEED": ("INT32", [1, 1], [3]),
        "TEMPERATURE": ("FP32", [1, 1], [0.25]),
        "TOP_P": ("FP32", [1, 1], [0.5]),
        "TOP_K": ("INT32", [1, 1], [10]),
        "REPETITION_PENALTY": ("FP32", [1, 1], [1.5]),
        "MAX_NEW_TOKENS": ("INT32", [1, 1], [100]),
        "REFINE": ("BOOL", [1, 1], [False]),
        "LANG": ("BYTES", [1, 1], [b"zh"]),
    }


def test_the_server_is_told_the_timeout(call: Call, triton: FakeTriton):
    call(triton.url, ["a"], timeout_s=12.5)

    assert triton.requests[-1].parameters["timeout"].int64_param == 12_500_000


def test_a_drawn_seed_is_returned_and_gives_the_same_audio_again(client: ChatTTSClient):
    first = client.synthesize("你好")
    second = client.synthesize("你好")
    again = client.synthesize("你好", seed=first.seed)

    assert (first.seed, second.seed) == (FIRST_DRAWN_SEED, FIRST_DRAWN_SEED + 1)
    assert not np.array_equal(first.samples, second.samples)
    assert np.array_equal(first.samples, again.samples)


def test_audio_that_was_cut_says_so_for_its_text_alone(call: Call, triton: FakeTriton):
    cut, whole = call(triton.url, ["0123456789", "01"], max_new_tokens=[5, 5])

    assert (cut.finish_reason, whole.finish_reason) == ("length", "stop")
    assert len(cut.samples) == 512 * 5 - 256


def test_answers_and_requests_above_4_mib_pass(call: Call, triton: FakeTriton):
    texts = ["长" * 2_000_000, "b", "c"]

    audios = call(triton.url, texts, seed=1)

    assert triton.requests[-1].ByteSize() > 4 * 2**20
    assert len(audios[0].samples) == 1_048_320  # 43.68 s
    assert np.array_equal(audios[2].samples, fake_samples("c", 1))


REFUSALS: list[tuple[grpc.StatusCode, str, type[ChatTTSClientError]]] = [
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        "in ensemble 'chattts', preprocess: TEXT: got '', wanted speakable text",
        InvalidRequestError,
    ),
    (
        grpc.StatusCode.UNAVAILABLE,
        "in ensemble 'chattts', gpt: the waiting queue is full",
        OverloadedError,
    ),
    (
        grpc.StatusCode.CANCELLED,
        "in ensemble 'chattts', gpt: deadline of 500 ms exceeded after 12 steps",
        DeadlineExceededError,
    ),
    (grpc.StatusCode.CANCELLED, "in ensemble 'chattts', gpt: cancelled", RequestCancelledError),
    (grpc.StatusCode.INTERNAL, "in ensemble 'chattts', gpt: NaN in logits", GenerationError),
]


@pytest.mark.parametrize(("status", "text", "kind"), REFUSALS)
def test_a_refusal_is_raised_with_the_servers_text_and_the_next_call_succeeds(
    call: Call,
    triton: FakeTriton,
    status: grpc.StatusCode,
    text: str,
    kind: type[ChatTTSClientError],
):
    triton.refusal = (status, text)

    with pytest.raises(kind) as caught:
        call(triton.url, ["a"])

    assert str(caught.value) == text
    triton.refusal = None
    assert len(call(triton.url, ["a"])) == 1


def test_what_cannot_be_sent_is_refused_before_the_call(call: Call, triton: FakeTriton):
    with pytest.raises(InvalidRequestError, match=r"^SEED: got 1\.5"):
        call(triton.url, ["a"], seed=1.5)

    assert triton.requests == []


def test_an_answer_that_breaks_the_contract_is_a_generation_error(call: Call, triton: FakeTriton):
    triton.change_outputs = lambda outputs: outputs.pop("AUDIO")

    with pytest.raises(GenerationError, match="AUDIO: missing"):
        call(triton.url, ["a"])


def test_a_call_without_an_answer_ends_at_its_timeout_at_both_ends(call: Call, triton: FakeTriton):
    triton.hangs = True

    with pytest.raises(DeadlineExceededError) as caught:
        call(triton.url, ["a"], timeout_s=0.3)

    assert str(caught.value) == f"{triton.url}: no answer within 0.3 s"
    assert triton.call_ended.wait(WAIT_S)


def test_a_server_that_is_not_there_is_unreachable(call: Call, free_port: int):
    with pytest.raises(ServerUnreachableError) as caught:
        call(f"127.0.0.1:{free_port}", ["a"])

    assert str(caught.value).startswith(f"127.0.0.1:{free_port}: failed to connect")


def test_a_server_killed_during_a_call_is_unreachable(call: Call):
    with subprocess.Popen(
        [sys.executable, fake_triton.__file__], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = f"127.0.0.1:{int(server.stdout.readline())}"
        try:
            with ThreadPoolExecutor(1) as pool:
                pending = pool.submit(call, url, ["a"])
                assert server.stdout.readline() == "arrived\n"
                server.kill()
                error = pending.exception(WAIT_S)
        finally:
            server.kill()

    assert isinstance(error, ServerUnreachableError)
    assert str(error).startswith(url)


def test_cancelling_a_task_cancels_the_call(triton: FakeTriton):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        triton.on_arrival = lambda: loop.call_soon_threadsafe(arrived.set)
        triton.hangs = True
        async with AsyncChatTTSClient(triton.url) as client:
            task = asyncio.create_task(client.synthesize("a"))
            await asyncio.wait_for(arrived.wait(), WAIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())

    assert triton.call_ended.wait(WAIT_S)


def test_b_99_one_client_serves_eight_threads_without_mixing_them_up(client: ChatTTSClient):
    texts = [str(number) * (number + 1) for number in range(8)]
    start = threading.Barrier(8)

    def synthesize(seed: int) -> Audio:
        start.wait(WAIT_S)
        return client.synthesize(texts[seed], seed=seed)

    with ThreadPoolExecutor(8) as pool:
        audios = list(pool.map(synthesize, range(8)))

    for seed, audio in enumerate(audios):
        assert np.array_equal(audio.samples, fake_samples(texts[seed], seed))


def test_calls_of_one_asyncio_client_run_side_by_side(triton: FakeTriton):
    all_here = threading.Barrier(4)
    triton.on_arrival = lambda: all_here.wait(WAIT_S)

    async def main() -> list[Audio]:
        async with AsyncChatTTSClient(triton.url) as client:
            return await asyncio.gather(*(client.synthesize("a", seed=n) for n in range(4)))

    assert [audio.seed for audio in asyncio.run(main())] == [0, 1, 2, 3]


def is_ready_sync(url: str, **arguments: Any) -> bool:
    with ChatTTSClient(url) as client:
        return client.is_ready(**arguments)


def is_ready_async(url: str, **arguments: Any) -> bool:
    async def main() -> bool:
        async with AsyncChatTTSClient(url) as client:
            return await client.is_ready(**arguments)

    return asyncio.run(main())


@pytest.mark.parametrize("is_ready", [is_ready_sync, is_ready_async])
def test_b_87_ready_means_that_the_model_is_loaded(
    is_ready: Callable[..., bool], triton: FakeTriton, free_port: int
):
    assert is_ready(triton.url) is True

    triton.is_model_loaded = False

    assert is_ready(triton.url) is False
    assert is_ready(f"127.0.0.1:{free_port}") is False
    with pytest.raises(InvalidRequestError, match=r"^timeout_s: got 0"):
        is_ready(triton.url, timeout_s=0)


def test_another_model_name_is_called_by_that_name(triton: FakeTriton):
    with ChatTTSClient(triton.url, model_name="chattts_de") as client:
        client.synthesize("a")
        assert client.is_ready() is False

    assert triton.requests[-1].model_name == "chattts_de"


def test_a_client_with_a_timeout_that_bounds_nothing_is_refused():
    with pytest.raises(InvalidRequestError, match=r"^timeout_s: got inf"):
        ChatTTSClient(timeout_s=float("inf"))
    gc.collect()  # nothing half-made is left that fails when it is collected


def test_the_client_imports_nothing_of_the_server():
    code = (
        "import sys, chattts_client; print([m for m in sys.modules if m.startswith('chattts_tr')])"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout == "[]\n"


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that refuses connections, kept from others by being bound."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
