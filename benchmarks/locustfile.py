"""Stepped load over HTTP: Triton's `generate`, or the gateway where `--host` is one.

Usage: locust -f benchmarks/locustfile.py --headless --host http://127.0.0.1:8000 \
    --only-summary --html build/locust.html
A refusal, 429 or 503, is counted under a name of its own and is no failure.
"""

from __future__ import annotations

import itertools
import os
import urllib.error
import urllib.request
from argparse import ArgumentTypeError
from typing import Any

from locust import FastHttpUser, LoadTestShape, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from chattts_triton.load.answers import failure_of_answer
from chattts_triton.load.texts import TEXTS

GENERATE_PATH = "/v2/models/chattts/generate"
SPEECH_PATH = "/v1/audio/speech"
PROBE_TIMEOUT_S = 10.0
KEY_VARIABLE = "CHATTTS_API_KEY"
PAUSE_S = 1.0  # of a user between two requests


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=_counts, default=[50, 100, 200], help="users of each step, by commas"
    )
    parser.add_argument("--step-s", type=float, default=60.0, help="how long a step lasts")
    parser.add_argument("--max-new-tokens", type=int, help="limit of 21 ms steps of each text")


@events.test_start.add_listener
def find_server(environment: Environment, **_: Any) -> None:
    """Ask once which of the two the host is; Triton alone has `/v2`."""
    SpeechUser.is_gateway = not _answers(f"{environment.host}/v2")


class SteppedLoad(LoadTestShape):
    """Each step's users at once, from the beginning of the step."""

    def tick(self) -> tuple[int, float] | None:
        """Users and users a second now; None when the last step is over."""
        options = self.runner.environment.parsed_options
        step = int(self.get_run_time() / options.step_s)
        if step >= len(options.steps):
            return None
        return options.steps[step], options.steps[step]


class SpeechUser(FastHttpUser):
    """Has a text spoken, waits a moment, and has the next one spoken."""

    is_gateway = False
    numbers = itertools.count()  # of all users together: each request has a seed of its own
    wait_time = constant(PAUSE_S)
    network_timeout = connection_timeout = 300.0

    @task
    def speak(self) -> None:
        """One request."""
        number = next(self.numbers)
        limit = self.environment.parsed_options.max_new_tokens
        path = SPEECH_PATH if self.is_gateway else GENERATE_PATH
        body = speech_body(TEXTS[number % len(TEXTS)], number, limit, is_gateway=self.is_gateway)
        with self.client.post(
            path, json=body, headers=key_header(), catch_response=True, name="speech"
        ) as response:
            if response.status_code == 200:
                response.success()
            elif not response.status_code:  # no answer at all
                response.failure(str(response.error))
            else:
                failure = failure_of_answer(response.status_code, response.content or b"")
                if failure.is_refusal:
                    response.request_meta["name"] = f"refused ({response.status_code})"
                    response.success()
                else:
                    response.failure(failure.message)


def speech_body(text: str, seed: int, limit: int | None, *, is_gateway: bool) -> dict[str, Any]:
    """The JSON of one request."""
    if is_gateway:
        body = {"input": text, "seed": seed, "response_format": "wav"}
        return body if limit is None else body | {"max_new_tokens": limit}
    body = {"TEXT": text, "SEED": seed}
    return body if limit is None else body | {"MAX_NEW_TOKENS": limit}


def key_header() -> dict[str, str]:
    """The bearer token, where the environment has a key."""
    key = os.environ.get(KEY_VARIABLE)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def _counts(value: str) -> list[int]:
    counts = [int(count) if count.isdecimal() else 0 for count in value.split(",")]
    if min(counts) < 1:
        raise ArgumentTypeError(f"got {value!r}, wanted numbers of users such as 50,100,200")
    return counts
