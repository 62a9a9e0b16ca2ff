"""The model `chattts_stream`: a thread for each request, and one that sees who has gone."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from chattts_triton.config import StreamConfig, read_config
from chattts_triton.errors import ChatTTSError, InvalidRequestError, OverloadedError
from chattts_triton.manifest import member_name
from chattts_triton.serving.caller_watch import CallerWatch
from chattts_triton.serving.edge import ModelArgs, Tensors, TritonEdge
from chattts_triton.serving.member_calls import MemberCalls
from chattts_triton.serving.metrics import RequestMetrics
from chattts_triton.serving.record import RequestRecord
from chattts_triton.serving.request_log import RequestLog
from chattts_triton.serving.response_stream import ResponseStream
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.text_stream import Mode, TextStream
from chattts_triton.tensors import CHATTTS_STREAM, MODE
from chattts_triton.text.cleaner import decode_text

CALLER_CLOSES = "caller_closes"  # a parameter of a request


class OpenStream:
    """A request, what is known about it, and how it is answered."""

    def __init__(
        self, request: Any, responses: ResponseStream, timeout_s: float, *, caller_closes: bool
    ) -> None:
        self.request = request
        self.responses = responses
        self.timeout_s = timeout_s
        self.caller_closes = caller_closes
        self.record = RequestRecord.begin(request.request_id())
        self.record.stream = True
        self.has_place = True


class StreamModel:
    """Serves streams side by side, a bounded number of them.

    Args:
        pb_utils: Triton's module of that name.
        edge: Of this model.
        args: What Triton told it.
        metrics: Of this process; started and closed here.
    """

    def __init__(self, pb_utils: Any, edge: TritonEdge, args: ModelArgs, metrics: Metrics) -> None:
        self._pb_utils = pb_utils
        self._edge = edge
        self._ensemble = args.ensemble
        self._config = read_config(StreamConfig, args.parameters)
        self._metrics = metrics
        model = member_name(args.ensemble, CHATTTS_STREAM.name)
        self._requests = RequestLog(args.ensemble, RequestMetrics(metrics, model))
        metrics.start()
        self._watch = CallerWatch()
        self._places = threading.BoundedSemaphore(self._config.max_streams)

    def accept(self, request: Any) -> None:
        """Serve a request on a thread of its own, or refuse it."""
        timeout_s = request.timeout() / 1e6 or self._config.default_timeout_ms / 1e3
        closes = self._caller_closes(request)
        responses = ResponseStream(self._edge, request, caller_closes=closes)
        stream = OpenStream(request, responses, timeout_s, caller_closes=closes)
        if not self._places.acquire(blocking=False):
            limit = self._config.max_streams
            self._refuse(stream, f"{limit} streams are open (max_streams {limit})")
            return
        try:
            threading.Thread(target=self._serve, args=(stream,), name="stream", daemon=True).start()
        except RuntimeError as error:  # the system has none to give
            self._places.release()
            self._refuse(stream, f"no thread for a stream: {error}")

    def close(self) -> None:
        """End the thread that watches; Triton calls this once no stream is open."""
        self._watch.close()
        self._metrics.close()

    def _refuse(self, stream: OpenStream, reason: str) -> None:
        error = OverloadedError(reason)
        stream.responses.fail(error)
        self._let_caller_close(stream)
        self._write(stream, error)

    def _caller_closes(self, request: Any) -> bool:
        """What the request says of it; where that is wrong, it is refused when it is read."""
        with suppress(InvalidRequestError):
            return take_caller_closes(self._edge.parameters(request))
        return False

    def _let_caller_close(self, stream: OpenStream) -> None:
        if stream.caller_closes:
            self._watch.finish_when_left(stream.responses.detached(), stream.timeout_s)

    def _serve(self, stream: OpenStream) -> None:
        try:
            with stream.responses:
                self._speak(stream)
        except Exception as error:  # noqa: BLE001 - it has been sent, and is recorded here
            self._let_caller_close(stream)
            self._write(stream, error)
        else:
            self._write(stream, None)

    def _speak(self, stream: OpenStream) -> None:
        try:
            text, inputs = self._read(stream)
            self._watch.add(stream.responses, text)
            self._send_chunks(stream, text, inputs)
        finally:
            self._leave_place(stream)
        self._let_caller_close(stream)

    def _leave_place(self, stream: OpenStream) -> None:
        """Let another stream be opened; before the end is told, or who asks at once finds none."""
        if stream.has_place:
            stream.has_place = False
            self._watch.remove(stream.responses)
            self._places.release()

    def _read(self, stream: OpenStream) -> tuple[TextStream, Tensors]:
        """The text of a request, and the inputs that are for `preprocess`."""
        request = stream.request
        inputs = self._edge.tensors(request)
        parameters = self._edge.parameters(request)
        mode = take_mode(inputs, parameters)
        take_caller_closes(parameters)
        calls = MemberCalls(self._pb_utils, self._ensemble, request, parameters, stream.timeout_s)
        return TextStream(calls, self._config, mode, stream.timeout_s, stream.record), inputs

    def _send_chunks(self, stream: OpenStream, text: TextStream, inputs: Tensors) -> None:
        record = stream.record
        try:
            for outputs, is_last in text.chunks(inputs):
                if is_last:
                    self._leave_place(stream)
                stream.responses.send(outputs, is_final=is_last and not stream.caller_closes)
                if record.ttfa_ms is None:
                    record.ttfa_ms = (time.monotonic() - record.arrival_s) * 1000
        except Exception:
            # Whatever went wrong, nobody will read on; it counts, not that `gpt` is gone as well.
            with suppress(ChatTTSError):
                text.cancel()
            raise

    def _write(self, stream: OpenStream, error: Exception | None) -> None:
        stream.record.end(error)
        self._requests.write(stream.record)


def take_caller_closes(parameters: dict[str, object]) -> bool:
    """Whether the caller will close the stream once it has the last chunk or an error.

    Triton forgets the responses that a caller has not read yet if it leaves after the final flag:
    they stay in memory, and the model can no more be unloaded. Before the flag it cleans them up.
    So a caller who tells a last chunk by itself had better have the flag wait until it has left.

    Raises:
        InvalidRequestError: It is neither true nor false.
    """
    closes = parameters.pop(CALLER_CLOSES, False)
    if not isinstance(closes, bool):
        raise InvalidRequestError.of(CALLER_CLOSES, closes, "true or false")
    return closes


def take_mode(inputs: Tensors, parameters: dict[str, object]) -> Mode:
    """The mode that was asked for, taken out of what is left for the members.

    Raises:
        InvalidRequestError: There is no such mode.
    """
    name = parameters.pop(MODE.name.lower(), "")
    if MODE.name in inputs:
        name = decode_text(bytes(inputs.pop(MODE.name)[0, 0]), MODE.name)
    try:
        return Mode.AUTO if name == "" else Mode(name)
    except ValueError:
        known = " or ".join(mode.value for mode in Mode)
        raise InvalidRequestError.of(MODE.name, name, known) from None
