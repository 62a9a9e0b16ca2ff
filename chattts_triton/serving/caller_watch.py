"""The thread that sees which callers of a stream have gone; Triton tells it only if asked."""

from __future__ import annotations

import logging
import threading
import time

from chattts_triton.errors import ChatTTSError
from chattts_triton.serving.response_stream import ResponseStream
from chattts_triton.serving.text_stream import TextStream

LOGGER = logging.getLogger(__name__)
_SPEAKING_CHECK_S = 0.005  # a decode step of the full model takes 8 ms and more
_LINGERING_CHECK_S = 0.1


class CallerWatch:
    """Cancels the texts whose callers have gone, and ends the streams that callers close.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._speaking: dict[ResponseStream, TextStream] = {}
        self._lingering: dict[ResponseStream, float] = {}  # until when, by time.monotonic()
        self._next_lingering_s = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._loop, name="watcher", daemon=True)
        self._thread.start()

    def add(self, responses: ResponseStream, text: TextStream) -> None:
        """Watch a stream whose text is being spoken."""
        with self._changed:
            self._speaking[responses] = text
            self._changed.notify()

    def remove(self, responses: ResponseStream) -> None:
        """The text has been spoken."""
        with self._changed:
            self._speaking.pop(responses, None)

    def finish_when_left(self, responses: ResponseStream, timeout_s: float) -> None:
        """Send the final flag once the caller has left, or after so long."""
        with self._changed:
            self._lingering[responses] = time.monotonic() + timeout_s
            self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closing or self._speaking or self._lingering
                )
                if self._is_closing:
                    return
                speaking, lingering = list(self._speaking.items()), list(self._lingering.items())
            for responses, text in speaking:
                self._cancel_if_gone(responses, text)
            if self._is_due_for_lingering():
                for responses, until_s in lingering:
                    self._finish_if_left(responses, until_s)
            if speaking:
                time.sleep(_SPEAKING_CHECK_S)
            else:
                with self._changed:
                    self._changed.wait(_LINGERING_CHECK_S)

    def _is_due_for_lingering(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_lingering_s:
            return False
        self._next_lingering_s = now_s + _LINGERING_CHECK_S
        return True

    def _cancel_if_gone(self, responses: ResponseStream, text: TextStream) -> None:
        """To be done again until the text has ended: `gpt` may not know it yet."""
        try:
            if responses.is_cancelled:
                text.cancel()
        except ChatTTSError as error:  # the thread of the stream meets it as well, and ends
            LOGGER.debug("a stream could not be cancelled: %s", error)
        except Exception:
            LOGGER.exception("it cannot be told who is there")

    def _finish_if_left(self, responses: ResponseStream, until_s: float) -> None:
        try:
            if not responses.is_cancelled and time.monotonic() < until_s:
                return
            responses.finish()
        except Exception:
            LOGGER.exception("a stream could not be ended")
        with self._changed:
            del self._lingering[responses]
