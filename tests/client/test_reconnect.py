"""One client over a server's restart: it finds the new one on the same port, and soon."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fake_triton import WAIT_S, FakeTriton

from chattts_client import AsyncChatTTSClient, ChatTTSClient, ServerUnreachableError, join_chunks

RECOVERY_S = 5.0


def test_calls_and_streams_go_on_after_the_server_was_started_again():
    with FakeTriton() as first:
        client = ChatTTSClient(first.url, timeout_s=WAIT_S)
        assert client.synthesize("a").finish_reason == "stop"
        assert join_chunks(client.stream("a")).finish_reason == "stop"
    with client:
        for _ in range(3):
            with pytest.raises(ServerUnreachableError):
                client.synthesize("a")
            with pytest.raises(ServerUnreachableError):
                next(client.stream("a"))

        with FakeTriton(first.port):
            deadline_s = time.monotonic() + RECOVERY_S
            while not client.is_ready():
                assert time.monotonic() < deadline_s
            assert client.synthesize("b").finish_reason == "stop"
            assert join_chunks(client.stream("b")).finish_reason == "stop"


def test_calls_and_streams_go_on_after_the_server_was_started_again_with_asyncio():
    async def main() -> None:
        with FakeTriton() as first:
            client = AsyncChatTTSClient(first.url, timeout_s=WAIT_S)
            await client.synthesize("a")
        async with client:
            with pytest.raises(ServerUnreachableError):
                await client.synthesize("a")
            with pytest.raises(ServerUnreachableError):
                await anext(client.stream("a"))

            with FakeTriton(first.port):
                deadline_s = time.monotonic() + RECOVERY_S
                while not await client.is_ready():
                    assert time.monotonic() < deadline_s
                assert (await client.synthesize("b")).finish_reason == "stop"
                joined = join_chunks([chunk async for chunk in client.stream("b")])
                assert joined.finish_reason == "stop"

    asyncio.run(main())


class BrokenServer:
    """Closes each connection that it accepts, and counts them."""

    def __init__(self, wanted: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wanted = wanted
        self.port = self._listener.getsockname()[1]
        self.had_enough = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        for _ in range(self._wanted):
            connection, _ = self._listener.accept()
            connection.close()
        self.had_enough.set()

    def close(self) -> None:
        while self._thread.is_alive():  # end it, be it still waiting
            with socket.create_connection(("127.0.0.1", self.port)):
                self._thread.join(0.1)
        self._listener.close()


@pytest.fixture
def broken_server() -> Iterator[BrokenServer]:
    server = BrokenServer(wanted=6)
    yield server
    server.close()


def test_a_client_goes_on_trying_often_to_reach_a_server_that_is_away(broken_server: BrokenServer):
    with ChatTTSClient(f"127.0.0.1:{broken_server.port}") as client:
        deadline_s = time.monotonic() + RECOVERY_S
        while not broken_server.had_enough.wait(0.01):
            assert not client.is_ready()
            assert time.monotonic() < deadline_s
