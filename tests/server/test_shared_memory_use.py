"""How much of /dev/shm a server takes while it works."""

from __future__ import annotations

from pathlib import Path

from breakable_server import BreakableServer, breakable_server, is_gone
from stream_calls import stream


def test_b88_shared_memory_stays_as_it_is_over_200_requests(tiny_repositories: dict[str, Path]):
    with breakable_server(tiny_repositories["fp32"]) as server:
        processes = server.processes()
        after_50 = bytes_after(server, 50)

        after_200 = bytes_after(server, 150)

    assert after_50 > 0
    assert after_200 == after_50
    assert is_gone(processes, server.prefix)


def bytes_after(server: BreakableServer, num_requests: int) -> int:
    """The size of all regions once so many calls, every fifth a stream, have been answered."""
    for number in range(num_requests):
        options = {"SEED": number, "MAX_NEW_TOKENS": 20}
        if number % 5 == 0:
            stream(server, "你好", **options)
        else:
            server.speak_one("你好", **options)
    return server.shared_memory_bytes()
