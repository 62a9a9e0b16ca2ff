"""The log of a model's process: JSON, one line for each request that ends there.

Lines go to standard error, which all processes of a server share. Each is one write, and one of
up to 4,096 bytes (PIPE_BUF) is never mixed with another's; only traces and, at debug, texts are
longer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from chattts_triton.config import read_log_level
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.record import RequestRecord

LOGGER = logging.getLogger(__name__)

_PACKAGE = "chattts_triton"
_STANDARD_ERROR = 2
_LEVELS = {"deadline": logging.WARNING, "error": logging.ERROR}  # of an outcome; else info


def set_up_logging(descriptor: int = _STANDARD_ERROR) -> None:
    """Log as CHATTTS_LOG_LEVEL says, for a process that runs one model; to be called once in it.

    Of libraries only errors are logged.

    Args:
        descriptor: Where the lines are written to.

    Raises:
        ModelLoadError: CHATTTS_LOG_LEVEL is no level.
    """
    level = read_log_level()
    handler = _LineHandler(descriptor)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.ERROR)
    logging.getLogger(_PACKAGE).setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """One JSON object in one line of ASCII, whatever is in the message.

    What was logged with `extra={"fields": {...}}` has these fields; anything else is an event
    `log` with the name of its logger, its message and, where there is one, its exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        line |= _message_fields(record, self) if fields is None else fields
        return json.dumps(line)


class RequestLog:
    """Writes down what became of each request; any thread may call it.

    Args:
        ensemble: The set of models.
        metrics: What counts them as well.
    """

    def __init__(self, ensemble: str, metrics: RequestMetrics) -> None:
        self._ensemble = ensemble
        self._metrics = metrics

    def write(self, record: RequestRecord) -> None:
        """Log and count a request that has ended."""
        self._metrics.count(record)
        level = _LEVELS.get(record.outcome, logging.INFO)
        LOGGER.log(level, "request", extra={"fields": self._fields(record)})

    def write_texts(self, record: RequestRecord, texts: Sequence[str]) -> None:
        """Log what a caller wrote, at debug. Nothing else may log it."""
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
        for row, text in enumerate(texts):
            fields = {
                "event": "text",
                "id": record.id,
                "ensemble": self._ensemble,
                "row": row,
                "text": text,
            }
            LOGGER.debug("text", extra={"fields": fields})

    def _fields(self, record: RequestRecord) -> dict[str, object]:
        return {
            "event": "request",
            "id": record.id,
            "ensemble": self._ensemble,
            "stream": record.stream,
            "mode": record.mode or None,
            "seed": record.seed,
            "texts": record.num_texts,
            "characters": record.characters,
            "steps": record.steps,
            "queue_ms": _rounded(record.queue_ms),
            "ttfa_ms": _rounded(record.ttfa_ms),
            "total_ms": _rounded(record.total_ms),
            "audio_s": round(record.audio_s, 3),
            "outcome": record.outcome,
            "error": record.error or None,
        }


class _LineHandler(logging.Handler):
    """Writes past Python's buffers, which may cut a line in two."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._descriptor, f"{self.format(record)}\n".encode("ascii"))
        except Exception:  # noqa: BLE001 - as every handler of `logging`: a log may end nobody
            self.handleError(record)


def _message_fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, object]:
    fields: dict[str, object] = {
        "event": "log",
        "logger": record.name,
        "message": record.getMessage(),
    }
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    return fields


def _rounded(duration_ms: float | None) -> float | None:
    return None if duration_ms is None else round(duration_ms, 1)
