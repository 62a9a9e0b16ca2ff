"""What is known about a request: over a tensor and back, its end, its line in the log."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chattts_triton.config import read_log_level
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
)
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.record import (
    MAX_ERROR_CHARACTERS,
    MAX_ID_CHARACTERS,
    OUTCOMES,
    RequestRecord,
    to_tensor,
)
from chattts_triton.serving.request_log import RequestLog, set_up_logging
from chattts_triton.serving.series import Metrics

KEYS = [
    "time",
    "level",
    "event",
    "id",
    "ensemble",
    "stream",
    "mode",
    "seed",
    "texts",
    "characters",
    "steps",
    "queue_ms",
    "ttfa_ms",
    "total_ms",
    "audio_s",
    "outcome",
    "error",
]


def a_record(**values: Any) -> RequestRecord:
    return RequestRecord(**{"id": "r-1", "arrival_s": time.monotonic() - 0.25, **values})


def sent(text: bytes) -> np.ndarray:
    return np.array([[text]], dtype=object)


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(to_tensor(a_record(), 1)[0, 0]) | values).encode()


def test_a_record_comes_back_from_its_tensor():
    record = a_record(seed=2**63 - 1, num_texts=2, characters=9, steps=77, queue_ms=1.5)

    array = to_tensor(record, 3)

    assert (array.shape, array.dtype) == ((3, 1), np.object_)
    assert array[1:].ravel().tolist() == [b"", b""]
    assert RequestRecord.from_tensor(array) == record


@pytest.mark.parametrize("array", [None, to_tensor(None, 1), to_tensor(None, 4)])
def test_where_there_is_no_record_there_is_none(array: np.ndarray | None):
    assert RequestRecord.from_tensor(array) is None


def test_an_id_of_any_characters_is_cut_and_survives_the_tensor():
    record = RequestRecord.begin("\n\x00😀" * 1000)

    assert len(record.id) == MAX_ID_CHARACTERS
    assert RequestRecord.from_tensor(to_tensor(record, 1)) == record


@pytest.mark.parametrize(
    "array",
    [
        sent(b"{"),
        sent(b"null"),
        sent(b"[]"),
        sent(b"\xff"),
        sent(b"[" * 4000),
        sent(b'{"id": "a"}'),
        sent(b"{" + b" " * 5000 + b"}"),
        sent(b"9" * 4000),
        sent(changed(more=1)),
        sent(changed(id="a" * 129)),
        sent(changed(id=5)),
        sent(changed(steps=-1)),
        sent(changed(steps=1.5)),
        sent(changed(steps=True)),
        sent(changed(seed=2**63)),
        sent(changed(seed=10**400)),
        sent(changed(stream=1)),
        sent(changed(queue_ms="1")),
        sent(changed(queue_ms=float("nan"))),
        sent(changed(audio_s=float("inf"))),
        sent(changed(arrival_s=None)),
        sent(changed(arrival_s=time.monotonic() + 1e6)),
        np.array([[1]]),
        np.array([["text"]], dtype=object),
        np.empty((0, 1), dtype=object),
    ],
)
def test_what_is_no_record_is_refused_by_its_name(array: np.ndarray):
    with pytest.raises(InvalidRequestError) as caught:
        RequestRecord.from_tensor(array)

    assert str(caught.value).startswith("RECORD: ")
    assert len(str(caught.value)) < 200


def test_a_request_that_ends_well_has_its_times():
    record = a_record()

    record.end()

    assert (record.outcome, record.error) == ("ok", "")
    assert record.total_ms is not None
    assert 250 <= record.total_ms < 60_000
    assert record.ttfa_ms == record.total_ms


def test_the_first_audio_of_a_stream_is_earlier_than_its_end():
    record = a_record(stream=True, ttfa_ms=40.0)

    record.end()

    assert record.ttfa_ms == 40.0
    assert record.total_ms is not None
    assert record.total_ms >= 250


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidRequestError("x"), "invalid"),
        (OverloadedError("x"), "refused"),
        (RequestCancelledError("x"), "cancelled"),
        (DeadlineExceededError("x"), "deadline"),
        (GenerationError("x"), "error"),
        (ModelLoadError("x"), "error"),
        (ChatTTSError("x"), "error"),
        (KeyError("x"), "error"),
        (MemoryError(), "error"),
    ],
)
def test_each_error_has_its_outcome(error: Exception, outcome: str):
    record = a_record()

    record.end(error)

    assert record.outcome == outcome
    assert record.outcome in OUTCOMES
    assert record.ttfa_ms is None
    assert record.total_ms is not None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GenerationError("logits are not finite at step 3"), "logits are not finite at step 3"),
        (
            InvalidRequestError("TEXT: got 5001 characters, wanted at most 5000"),
            "TEXT: got 5001 characters, wanted at most 5000",
        ),
        (
            InvalidRequestError.of("SPEED", 10, "0 to 9"),
            "SPEED: got 10, wanted 0 to 9",
        ),
        (
            InvalidRequestError("TEXT: got '私密', which has no speakable text; wanted letters"),
            "TEXT: got '...', which has no speakable text; wanted letters",
        ),
        (KeyError("secret"), "KeyError"),
    ],
)
def test_an_error_is_told_without_what_the_caller_wrote(error: Exception, text: str):
    record = a_record()

    record.end(error)

    assert record.error == text


@pytest.mark.parametrize(
    "value",
    [
        "secret",
        "se'cret",
        'se"cret',
        "s'e\"cret",
        "'secret",
        b"secret\xff",
        "secret" * 50,
        "'secret" * 50,
        "\"'secret" * 50,
        ["secret"],
    ],
)
@pytest.mark.parametrize("wanted", ["'zh' or 'en'", "Han characters"])
def test_no_quoted_value_is_left_in_an_error(value: object, wanted: str):
    record = a_record()

    record.end(InvalidRequestError.of("LANG", value, wanted))

    assert record.error.startswith("LANG: got ")
    assert "secret" not in record.error
    assert "cret" not in record.error


def test_a_long_error_is_cut():
    record = a_record()

    record.end(GenerationError("x" * 10_000))

    assert record.error == "x" * MAX_ERROR_CHARACTERS


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, "info"),
        ({"CHATTTS_LOG_LEVEL": "debug"}, "debug"),
        ({"CHATTTS_LOG_LEVEL": "WARNING"}, "warning"),
    ],
)
def test_the_log_level_comes_from_the_environment(environment: dict[str, str], level: str):
    assert read_log_level(environment) == level


@pytest.mark.parametrize("value", ["", "verbose", "10", "info "])
def test_a_wrong_log_level_is_refused_with_the_known_ones(value: str):
    with pytest.raises(ModelLoadError, match=r"got '.*', wanted debug, info, warning, error$"):
        read_log_level({"CHATTTS_LOG_LEVEL": value})


class Output:
    """What is logged to a pipe, line by line."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()

    def lines(self) -> list[dict[str, Any]]:
        os.close(self.writing)
        with os.fdopen(self._reading, "rb") as pipe:
            content = pipe.read().decode("ascii")
        assert content.endswith("\n") or not content
        return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[Output]:
    """The log of a model's process, at debug."""
    root, package = logging.getLogger(), logging.getLogger("chattts_triton")
    former = (root.handlers[:], root.level, package.level)
    monkeypatch.setenv("CHATTTS_LOG_LEVEL", "debug")
    output = Output()
    set_up_logging(output.writing)
    yield output
    root.handlers[:] = former[0]
    root.setLevel(former[1])
    package.setLevel(former[2])


class SilentFamily:
    """Triton's metrics, none of which is ever published here."""

    COUNTER = GAUGE = HISTOGRAM = 0

    def __init__(self, **_arguments: Any) -> None:
        pass

    def Metric(self, **_arguments: Any) -> None:  # noqa: N802 - Triton's name
        return None


@pytest.fixture
def log() -> RequestLog:
    metrics = Metrics(SimpleNamespace(MetricFamily=SilentFamily), "voices")
    return RequestLog("voices", RequestMetrics(metrics, "voices"))


def test_a_request_is_one_line_with_its_keys_in_order(output: Output, log: RequestLog):
    record = a_record(seed=7, num_texts=1, characters=5, steps=93, queue_ms=0.123, audio_s=1.98467)
    record.end()
    log.write(record)

    (line,) = output.lines()

    assert list(line) == KEYS
    at = datetime.fromisoformat(line["time"])
    assert line["time"].endswith("Z")
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert (line["level"], line["event"], line["outcome"]) == ("info", "request", "ok")
    assert (line["id"], line["ensemble"], line["stream"]) == ("r-1", "voices", False)
    assert (line["mode"], line["error"]) == (None, None)
    assert (line["seed"], line["texts"], line["characters"], line["steps"]) == (7, 1, 5, 93)
    assert (line["queue_ms"], line["audio_s"]) == (0.1, 1.985)
    assert line["total_ms"] == line["ttfa_ms"] == round(record.total_ms or 0, 1)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (None, "info"),
        (InvalidRequestError("x"), "info"),
        (OverloadedError("x"), "info"),
        (RequestCancelledError("x"), "info"),
        (DeadlineExceededError("x"), "warning"),
        (GenerationError("x"), "error"),
    ],
)
def test_an_outcome_has_its_level(
    output: Output, log: RequestLog, error: Exception | None, level: str
):
    record = a_record()
    record.end(error)
    log.write(record)

    (line,) = output.lines()

    assert line["level"] == level


def test_nothing_in_an_id_can_make_another_line(output: Output, log: RequestLog):
    name = 'a\n{"event": "request"}\r\u2028\x1b[31m\x9b'
    record = RequestRecord.begin(name)
    record.end()
    log.write(record)

    (line,) = output.lines()

    assert line["id"] == name


def test_the_longest_line_of_a_request_fits_into_one_write_to_a_pipe(
    output: Output, log: RequestLog
):
    record = RequestRecord.begin("😀" * 1000)
    record.seed = record.num_texts = record.characters = record.steps = 2**63 - 1
    record.end(GenerationError("\x00" * 1000))
    log.write(record)

    (line,) = output.lines()

    assert len(json.dumps(line)) < 4096


def test_texts_are_logged_at_debug_each_with_its_request(output: Output, log: RequestLog):
    log.write_texts(RequestRecord.begin("r-2"), ["你好", "a\nb"])

    lines = output.lines()

    assert [(line["event"], line["id"], line["row"], line["text"]) for line in lines] == [
        ("text", "r-2", 0, "你好"),
        ("text", "r-2", 1, "a\nb"),
    ]


def test_texts_are_not_logged_at_info(
    output: Output, log: RequestLog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CHATTTS_LOG_LEVEL", "info")
    set_up_logging(output.writing)

    log.write_texts(RequestRecord.begin("r-2"), ["你好"])

    assert output.lines() == []


def test_any_other_message_is_a_line_of_its_own(output: Output):
    logging.getLogger("chattts_triton.text.lexicon").info("%s: lexicon\nreloaded", "文")

    (line,) = output.lines()

    assert list(line) == ["time", "level", "event", "logger", "message"]
    assert line["event"] == "log"
    assert line["logger"] == "chattts_triton.text.lexicon"
    assert line["message"] == "文: lexicon\nreloaded"


def test_an_exception_is_in_the_line_with_its_trace(output: Output):
    try:
        raise ValueError("what\nhappened")
    except ValueError:
        logging.getLogger("chattts_triton.engine.engine").exception("step failed")

    (line,) = output.lines()

    assert (line["level"], line["message"]) == ("error", "step failed")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: what\nhappened")


def test_a_log_that_cannot_be_written_ends_nobody(
    output: Output, capsys: pytest.CaptureFixture[str]
):
    set_up_logging(-1)

    logging.getLogger("chattts_triton").error("lost")

    assert output.lines() == []
    assert "Bad file descriptor" in capsys.readouterr().err


def test_of_libraries_only_errors_are_logged(output: Output):
    logging.getLogger("library").warning("noise")
    logging.getLogger("library").error("broken")

    assert [line["message"] for line in output.lines()] == ["broken"]


def test_a_second_set_up_does_not_double_the_lines(output: Output):
    set_up_logging(output.writing)
    logging.getLogger("chattts_triton").error("once")

    assert len(output.lines()) == 1


def test_lines_of_many_threads_are_not_mixed(output: Output, log: RequestLog):
    def write(index: int) -> None:
        for number in range(20):
            record = RequestRecord.begin(f"{index}-{number}")
            record.end()
            log.write(record)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    names = {line["id"] for line in output.lines()}
    assert names == {f"{index}-{number}" for index in range(4) for number in range(20)}
