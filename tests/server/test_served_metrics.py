"""A known load against what a real server says of it: in /metrics and in its log."""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_text import Family, Labels, parse
from triton_calls import START_TIMEOUT_S, RunningServer, infer_input, text_tensors
from tritonclient.utils import InferenceServerException

from chattts_triton import __version__
from chattts_triton.constants import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from chattts_triton.errors import ServerStartError
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.serving.metrics import MAX_OBSERVED_STEPS
from chattts_triton.serving.record import OUTCOMES
from chattts_triton.serving.series import PUBLISH_INTERVAL_S

NUM_SLOTS = 2
MANY_SLOTS = 8  # the longest texts fill them for seconds
LONG = {"SEED": 0, "MAX_NEW_TOKENS": 300}
ENDLESS = {"SEED": 0, "MAX_NEW_TOKENS": 2048, "REPETITION_PENALTY": 1.0, "TEMPERATURE": 0.01}
STREAM = "chattts_stream"
SECRET = "只有我知道的话"
TIMEOUT_S = 30.0
WITH_TEXTS = {"steps_total", "batch_size", "step_seconds"}  # depend on who ran beside whom

Values = dict[tuple[str, Labels], float]


@dataclass
class Observed:
    """A server, and what it tells."""

    calls: RunningServer
    process_id: int

    def families(self) -> dict[str, Family]:
        with urllib.request.urlopen(f"http://{self.calls.metrics_url}/metrics") as response:
            return parse(response.read().decode(), "chattts_")

    def values(self) -> Values:
        """Every sample but the buckets, by name and labels."""
        return {
            key: value
            for family in self.families().values()
            for key, value in family.samples.items()
            if not key[0].endswith("_bucket")
        }

    def lines(self) -> list[dict[str, Any]]:
        """What the models have logged."""
        # A file of its own: a position shared with the server would be changed for it as well.
        content = Path(f"/proc/{self.process_id}/fd/2").read_text(encoding="ascii")
        return [json.loads(line) for line in content.splitlines() if line.startswith("{")]

    def requests(self, prefix: str) -> list[dict[str, Any]]:
        """The lines of the requests whose id begins so."""
        lines = [line for line in self.lines() if line["event"] == "request"]
        return [line for line in lines if line["id"].startswith(prefix)]


@contextmanager
def observing(repository: Path, num_slots: int) -> Iterator[Observed]:
    """So many slots, and nobody may wait."""
    with (
        serve_in_background(
            repository,
            arguments=[f"--max-num-seqs={num_slots}"],
            environment={**os.environ, "CHATTTS_MAX_WAITING": "0"},
            timeout_s=START_TIMEOUT_S,
        ) as server,
        grpcclient.InferenceServerClient(server.grpc) as client,
    ):
        calls = RunningServer(server.grpc, server.http, server.metrics, repository, client)
        yield Observed(calls, server.process.pid)


@pytest.fixture(scope="module")
def observed(endless_repository: Path) -> Iterator[Observed]:
    with observing(endless_repository, NUM_SLOTS) as server:
        yield server


@pytest.fixture
def observed_with_many_slots(endless_repository: Path) -> Iterator[Observed]:
    with observing(endless_repository, MANY_SLOTS) as server:
        yield server


def sample(name: str, **labels: str) -> tuple[str, Labels]:
    return f"chattts_{name}", tuple(sorted({"ensemble": "chattts", **labels}.items()))


def requests(outcome: str, model: str = "chattts") -> tuple[str, Labels]:
    return sample("requests_total", model=model, outcome=outcome)


def differences(before: Values, after: Values) -> Values:
    """What grew or shrank, without what depends on the clock and on the neighbours."""
    assert before.keys() == after.keys()
    changed = {key: after[key] - before[key] for key in after if after[key] != before[key]}
    return {
        (name, labels): difference
        for (name, labels), difference in changed.items()
        if not name.endswith("_seconds_sum")
        and not any(name.startswith(f"chattts_{each}") for each in WITH_TEXTS)
    }


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        pause.wait(0.05)


def steady(observed: Observed) -> Values:
    """The values once every request of the log has been published, and nothing changes any more."""

    def is_steady() -> bool:  # each process publishes by itself, a member's last counts may follow
        values = observed.values()
        total = sum(value for (name, _), value in values.items() if name == requests("ok")[0])
        threading.Event().wait(3 * PUBLISH_INTERVAL_S)
        return total == len(observed.requests("")) and observed.values() == values

    wait_for(is_steady)
    return observed.values()


def stream(observed: Observed, request_id: str, tensors: dict[str, Any]) -> list[Any]:
    """Every answer of a stream, or its error."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(observed.calls.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        inputs = [infer_input("chattts", name, values) for name, values in tensors.items()]
        client.async_stream_infer(STREAM, inputs, request_id=request_id)
        received = [answers.get(timeout=TIMEOUT_S)]
        while not is_last(received[-1]):
            received.append(answers.get(timeout=TIMEOUT_S))
    return received


def is_last(answer: Any) -> bool:
    if isinstance(answer, InferenceServerException):
        return True
    return bool(answer.get_response().parameters["triton_final_response"].bool_param)


def test_metrics_are_valid_and_complete_before_the_first_request(observed: Observed):
    families = observed.families()

    for family in families.values():
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.kind in ("counter", "gauge", "histogram")
    values = observed.values()
    assert {requests(outcome, model) for outcome in OUTCOMES for model in ("chattts", STREAM)} <= (
        values.keys()
    )
    wait_for(lambda: observed.values()[sample("slots")] == NUM_SLOTS)
    (build,) = families["chattts_build_info"].samples
    assert dict(build[1])["version"] == __version__
    assert dict(build[1])["precision"] == "fp32"
    assert observed.values()[build] == 1


def test_a_known_load_is_counted_exactly(observed: Observed):
    calls = observed.calls
    before = steady(observed)

    one = calls.speak("你好", SEED=1, MAX_NEW_TOKENS=3)
    two = calls.speak(["你好，世界。", "再见"], SEED=2, MAX_NEW_TOKENS=[4, 5])
    assert calls.refused("").status == "INVALID_ARGUMENT"  # preprocess says so
    assert calls.refused(["你好"] * 3).status == "INVALID_ARGUMENT"  # gpt says so
    assert calls.refused("你好", SEED=0, VOICE="nobody").status == "INVALID_ARGUMENT"
    assert calls.refused("你好", **LONG, timeout_us=50_000).status == "CANCELLED"
    after = steady(observed)

    speeches = [*one, *two]
    num_cut = sum(speech.finish_reason == "length" for speech in speeches)
    audio_s = after[sample("audio_seconds_total")] - before[sample("audio_seconds_total")]
    grown = differences(before, after)
    grown.pop(sample("audio_seconds_total"))
    expected = {
        requests("ok"): 2,
        requests("invalid"): 3,
        requests("deadline"): 1,
        sample("characters_total"): len("你好" + "你好，世界。" + "再见"),
        sample("finish_reasons_total", reason="length"): num_cut,
        sample("finish_reasons_total", reason="stop"): len(speeches) - num_cut,
        sample("queue_seconds_count"): 4,  # three texts, and the one that was too late
        sample("request_seconds_count", model="chattts"): 2,
        sample("time_to_first_audio_seconds_count", model="chattts"): 2,
    }
    assert grown == {key: value for key, value in expected.items() if value}
    num_samples = sum(len(speech.samples) for speech in speeches)
    assert audio_s == pytest.approx(num_samples / SAMPLE_RATE_HZ, abs=1e-9)


def test_a_full_queue_is_seen_while_it_is_full(observed_with_many_slots: Observed):
    observed = observed_with_many_slots
    calls = observed.calls
    before = steady(observed)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            calls.speak, ["你好", "再见"] * (MANY_SLOTS // 2), **ENDLESS, timeout_us=4_000_000
        )
        wait_for(lambda: observed.values()[sample("slots_used")] == MANY_SLOTS)
        busy = observed.values()
        refusal = calls.refused("你好")
        assert not running.done()
        is_late = isinstance(running.exception(TIMEOUT_S), InferenceServerException)

    assert refusal.status == "UNAVAILABLE"
    assert busy[sample("running_requests")] == 1
    assert busy[sample("waiting_requests")] == 0
    after = steady(observed)
    assert after[requests("refused")] - before[requests("refused")] == 1
    ended = requests("deadline" if is_late else "ok")
    assert after[ended] - before[ended] == 1
    assert after[sample("running_requests")] == after[sample("slots_used")] == 0


def test_the_steps_of_one_request_are_counted_one_by_one(observed: Observed):
    num_steps = 9
    assert num_steps < MAX_OBSERVED_STEPS
    before = steady(observed)

    (speech,) = observed.calls.speak("你好", SEED=0, MAX_NEW_TOKENS=num_steps)
    after = steady(observed)

    # The first code comes from the pass over the prompt.
    assert (speech.finish_reason, len(speech.samples)) == (
        "length",
        num_steps * SAMPLES_PER_CODE - SAMPLES_PER_CODE // 2,
    )
    for name in ("steps_total", "batch_size_count", "batch_size_sum", "step_seconds_count"):
        assert after[sample(name)] - before[sample(name)] == num_steps - 1, name
    step_s = after[sample("step_seconds_sum")] - before[sample("step_seconds_sum")]
    request = sample("request_seconds_sum", model="chattts")
    assert 0 < step_s < after[request] - before[request]


def test_each_request_is_one_line_in_the_log(observed: Observed):
    calls = observed.calls
    speech = {"SEED": 5, "MAX_NEW_TOKENS": 3}

    outputs = calls.call("chattts", text_tensors(SECRET, **speech), request_id="log-ok")
    calls.refusal("chattts", text_tensors("！" + "🙂" * 20), request_id="log-invalid")
    calls.refusal("chattts", text_tensors(["你好"] * 3), request_id="log-too-many")
    calls.refusal("chattts", text_tensors("你好", LANG=SECRET), request_id="log-quoted")
    calls.refusal("chattts", text_tensors("你好", **LONG), timeout_us=50_000, request_id="log-late")
    wait_for(lambda: len(observed.requests("log-")) >= 5)

    lines = {line["id"]: line for line in observed.requests("log-")}
    assert len(observed.requests("log-")) == len(lines) == 5
    told = {name: (line["level"], line["outcome"], line["error"]) for name, line in lines.items()}
    late = told.pop("log-late")
    assert told == {
        "log-ok": ("info", "ok", None),
        "log-invalid": (
            "info",
            "invalid",
            "TEXT: got '...', which has no speakable text; "
            "wanted Han characters, Latin letters or digits",
        ),
        "log-too-many": ("info", "invalid", "TEXT: got 3, wanted at most 2 segments in one call"),
        "log-quoted": ("info", "invalid", "LANG: got '...'"),
    }
    assert late[:2] == ("warning", "deadline")
    assert re.fullmatch(r"deadline of 50 ms exceeded after \d+ steps", late[2])
    ok = lines["log-ok"]
    assert (ok["ensemble"], ok["stream"], ok["mode"], ok["seed"]) == ("chattts", False, None, 5)
    assert (ok["texts"], ok["characters"], ok["steps"]) == (1, len(SECRET), 3)
    assert ok["audio_s"] == round(int(outputs["AUDIO_LENGTH"][0, 0]) / SAMPLE_RATE_HZ, 3)
    assert 0 <= ok["queue_ms"] <= ok["ttfa_ms"] == ok["total_ms"]
    assert lines["log-late"]["total_ms"] >= 50
    assert lines["log-too-many"]["texts"] == 3


def test_a_stream_is_counted_as_one_of_its_own_model(observed: Observed):
    before = steady(observed)

    tensors = text_tensors("你好", **(ENDLESS | {"SEED": 3, "MAX_NEW_TOKENS": 60}))
    mode = np.array([[b"low_latency"]], dtype=object)
    answers = stream(observed, "stream-ok", {**tensors, "MODE": mode})
    refused = stream(observed, "stream-invalid", text_tensors("你好", SPEED=[10]))
    after = steady(observed)

    chunks = [answer for answer in answers if isinstance(answer, grpcclient.InferResult)]
    assert len(chunks) == len(answers) > 1
    assert [type(answer) for answer in refused] == [InferenceServerException]
    num_samples = sum(chunk.as_numpy("AUDIO").shape[1] for chunk in chunks)
    reason = chunks[-1].as_numpy("FINISH_REASON")[0, 0].decode()
    grown = differences(before, after)
    audio_s = grown.pop(sample("audio_seconds_total"))
    assert audio_s == pytest.approx(num_samples / SAMPLE_RATE_HZ, abs=1e-9)
    assert grown == {
        requests("ok", STREAM): 1,
        requests("invalid", STREAM): 1,
        sample("characters_total"): 2,
        sample("finish_reasons_total", reason=reason): 1,
        sample("queue_seconds_count"): 1,
        sample("request_seconds_count", model=STREAM): 1,
        sample("time_to_first_audio_seconds_count", model=STREAM): 1,
    }
    ok, invalid = observed.requests("stream-")
    assert (ok["id"], ok["outcome"], ok["stream"]) == ("stream-ok", "ok", True)
    assert (ok["mode"], ok["seed"], ok["texts"], ok["characters"]) == ("low_latency", 3, 1, 2)
    assert ok["steps"] == (num_samples + SAMPLES_PER_CODE // 2) / SAMPLES_PER_CODE
    assert ok["audio_s"] == round(audio_s, 3)
    assert 0 <= ok["queue_ms"] <= ok["ttfa_ms"] < ok["total_ms"]
    assert (invalid["id"], invalid["outcome"]) == ("stream-invalid", "invalid")
    assert invalid["error"] == "SPEED: got 10, wanted 0 to 9"


def test_no_text_of_a_caller_is_in_the_log(observed: Observed):
    observed.calls.speak_one(SECRET, SEED=5, MAX_NEW_TOKENS=1)
    observed.calls.refused("你好", VOICE=SECRET)

    content = Path(f"/proc/{observed.process_id}/fd/2").read_text(encoding="utf-8")

    assert SECRET not in content
    assert json.dumps(SECRET)[1:-1] not in content
    assert "🙂" not in content
    assert json.dumps("🙂")[1:-1] not in content


def test_an_id_of_a_caller_cannot_forge_a_line(observed: Observed):
    name = 'forged\n{"event": "request", "id": "forged"}'

    observed.calls.call(
        "chattts", text_tensors("你好", SEED=5, MAX_NEW_TOKENS=1), request_id=name + "x" * 500
    )

    wait_for(lambda: observed.requests("forged"))

    (line,) = observed.requests("forged")
    assert line["id"] == (name + "x" * 500)[:128]


def test_a_member_that_is_called_by_itself_ends_no_request(observed: Observed):
    before = steady(observed)

    observed.calls.call(
        "preprocess", text_tensors("你好", SEED=5), outputs=["TEXT_IDS"], request_id="member-1"
    )
    observed.calls.speak_one("你好", SEED=5, MAX_NEW_TOKENS=1)
    after = steady(observed)

    assert after[requests("ok")] - before[requests("ok")] == 1
    assert observed.requests("member-") == []


def test_a_wrong_log_level_is_named_by_the_start(tiny_repositories: dict[str, Path]):
    environment = {**os.environ, "CHATTTS_LOG_LEVEL": "loud"}
    with (
        pytest.raises(ServerStartError, match="CHATTTS_LOG_LEVEL: got 'loud', wanted debug, info"),
        serve_in_background(tiny_repositories["fp32"], environment=environment),
    ):
        pass
