"""The process of a member is killed while requests are in it: all fail soon, and service returns.

A process that is suspended first holds whatever is sent, so that the requests are certainly there.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from breakable_server import BreakableServer, breakable_server, is_gone, wait_for
from stream_calls import StreamCall
from triton_calls import Refusal
from tritonclient.utils import InferenceServerException

TEXT = "你好"
OPTIONS = {"SEED": 3, "MAX_NEW_TOKENS": 4}
NUM_STREAMS = 2
MAX_FAILURE_S = 5.0
MAX_RECOVERY_S = 5.0  # besides the time to load
HELD_BY = {
    "preprocess": ("preprocess",),
    "gpt": ("gpt",),
    "vocos_decoder": ("vocos_decoder",),
    "chattts_stream": ("chattts_stream", "gpt"),  # of which the second holds the plain calls
}


@pytest.mark.parametrize("member", HELD_BY)
def test_a_killed_member_fails_what_is_in_flight_and_the_next_request_succeeds(
    member: str, tiny_repositories: dict[str, Path]
):
    with breakable_server(tiny_repositories["fp32"]) as server:
        expected = server.speak_one(TEXT, **OPTIONS)
        processes = server.processes()
        with ThreadPoolExecutor(5) as pool, ExitStack() as streams:
            for model in HELD_BY[member]:
                server.stub(model).suspend()
            calls = [pool.submit(ended, server.speak_one, TEXT, **OPTIONS) for _ in range(2)]
            calls.append(pool.submit(ended, post, server))
            for _ in range(NUM_STREAMS):
                stream = streams.enter_context(StreamCall(server, TEXT, **OPTIONS))
                calls.append(pool.submit(ended, stream.next))
            # One more is being executed, of each kind of request that is held apart.
            num_held = len(calls) - len(HELD_BY[member])
            wait_for(lambda: sum(map(server.num_waiting_for, HELD_BY[member])) == num_held)

            killed_s = time.monotonic()
            server.stub(member).kill()
            outcomes = [call.result() for call in calls]

        server.background.wait_until_ready(server.load_s + MAX_RECOVERY_S)
        recovered = server.speak_one(TEXT, **OPTIONS)
        recovery_s = time.monotonic() - killed_s
        sys.stdout.write(f"{member}: loaded in {server.load_s:.2f} s, back in {recovery_s:.2f} s\n")

        assert all(isinstance(outcome, Exception | Refusal) for outcome, _ in outcomes), outcomes
        assert max(at_s for _, at_s in outcomes) - killed_s < MAX_FAILURE_S
        assert recovered == expected
        assert recovery_s < server.load_s + MAX_RECOVERY_S
        assert not set(processes) & set(server.processes())
        left = server.processes()
    assert is_gone(processes + left, server.prefix)


def ended(
    call: Callable[..., object], *arguments: object, **options: object
) -> tuple[object, float]:
    """What a call came to, an exception for one that failed, and when."""
    try:
        outcome = call(*arguments, **options)
    except (InferenceServerException, OSError, http.client.HTTPException) as error:
        outcome = error
    return outcome, time.monotonic()


def post(server: BreakableServer) -> dict[str, object]:
    """The answer to a call over HTTP that goes well."""
    status, body = server.post("generate", {"TEXT": TEXT, **OPTIONS})
    if status != http.client.OK:
        raise http.client.HTTPException(f"{status}: {body}")
    return body
