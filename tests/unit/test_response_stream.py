"""However the block of a stream is left, its caller gets one final flag, and nothing behind it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_pb_utils import FINAL, PbUtils, Request, Sender, TritonError, TritonModelException

from chattts_triton.errors import DeadlineExceededError, GenerationError, RequestCancelledError
from chattts_triton.serving.edge import TritonEdge
from chattts_triton.serving.response_stream import ResponseStream
from chattts_triton.tensors import VOCOS_DECODER


@pytest.fixture
def request_() -> Request:
    return Request(outputs=("AUDIO",))


@pytest.fixture
def sender(request_: Request) -> Sender:
    return request_.sender


@pytest.fixture
def responses(request_: Request) -> ResponseStream:
    return ResponseStream(TritonEdge(PbUtils(), VOCOS_DECODER), request_)


def chunk(index: int) -> dict[str, np.ndarray]:
    return {
        "AUDIO": np.full((1, 4), index, np.float32),
        "AUDIO_LENGTH": np.array([[4]], np.int64),
        "PCM16": np.zeros((1, 4), np.int16),
    }


def leave(responses: ResponseStream, error: BaseException, *sent: dict[str, np.ndarray]) -> None:
    """Leave the block of a stream with an error, some chunks having been sent."""
    with responses:
        for outputs in sent:
            responses.send(outputs)
        raise error


def test_the_last_response_carries_the_final_flag(responses: ResponseStream, sender: Sender):
    with responses:
        responses.send(chunk(0))
        responses.send(chunk(1))
        responses.send(chunk(2), is_final=True)

    assert [each["AUDIO"][0, 0] for each in sender.chunks()] == [0, 1, 2]


def test_the_final_flag_can_follow_the_last_response_alone(
    responses: ResponseStream, sender: Sender
):
    with responses:
        responses.send(chunk(0))
        responses.send(chunk(1))
        responses.finish()

    assert [each["AUDIO"][0, 0] for each in sender.chunks()] == [0, 1]
    assert sender.sent[-1] == (None, FINAL)
    assert not responses.is_cancelled


def test_only_the_outputs_that_were_asked_for_are_sent(responses: ResponseStream, sender: Sender):
    with responses:
        responses.send(chunk(0), is_final=True)

    assert set(sender.chunks()[0]) == {"AUDIO"}


def test_our_error_ends_the_request_with_its_code_and_goes_on_to_the_caller_of_the_block(
    responses: ResponseStream, sender: Sender
):
    error = DeadlineExceededError("deadline of 5 ms exceeded after 12 steps")

    with pytest.raises(DeadlineExceededError):
        leave(responses, error, chunk(0))

    assert len(sender.sent) == 2
    assert sender.error().code == TritonError.CANCELLED
    assert sender.error().message() == ("vocos_decoder: deadline of 5 ms exceeded after 12 steps")


def test_a_bug_ends_the_request_with_an_internal_error(responses: ResponseStream, sender: Sender):
    with pytest.raises(KeyError):
        leave(responses, KeyError("HIDDENS"))

    assert sender.error().code == TritonError.INTERNAL
    assert "internal error: KeyError" in sender.error().message()


def test_what_even_ends_the_thread_ends_the_request(responses: ResponseStream, sender: Sender):
    with pytest.raises(SystemExit):
        leave(responses, SystemExit())

    assert sender.error().code == TritonError.INTERNAL


def test_an_output_that_is_not_as_declared_ends_the_request(
    responses: ResponseStream, sender: Sender
):
    with pytest.raises(GenerationError, match="AUDIO: made float64"), responses:
        responses.send(chunk(0) | {"AUDIO": np.zeros((1, 4))}, is_final=True)

    assert len(sender.sent) == 1
    assert sender.error().code == TritonError.INTERNAL


@pytest.mark.parametrize("num_chunks", [0, 2])
def test_a_block_that_ends_too_early_does_not_look_like_a_whole_answer(
    responses: ResponseStream, sender: Sender, num_chunks: int
):
    with responses:
        for index in range(num_chunks):
            responses.send(chunk(index))

    assert len(sender.sent) == num_chunks + 1
    assert sender.error().code == TritonError.CANCELLED
    assert sender.error().message() == "vocos_decoder: ended before its last chunk"


def test_a_cancelled_request_ends_once(responses: ResponseStream, sender: Sender):
    sender.is_gone = True
    assert responses.is_cancelled

    with pytest.raises(RequestCancelledError):
        leave(responses, RequestCancelledError("cancelled after 3 steps"))

    assert sender.error().code == TritonError.CANCELLED


def test_an_error_behind_the_last_response_changes_nothing(
    responses: ResponseStream, sender: Sender
):
    responses.send(chunk(0), is_final=True)

    with pytest.raises(KeyError):
        leave(responses, KeyError("a bug behind it"))

    assert len(sender.chunks()) == 1


def test_a_request_that_was_ended_twice_ended_once(responses: ResponseStream, sender: Sender):
    with responses:
        responses.fail(GenerationError("first"))
        responses.fail(GenerationError("second"))
    with responses:
        pass

    assert len(sender.sent) == 1
    assert sender.error().message() == "vocos_decoder: first"


def test_a_whole_answer_cannot_be_failed_any_more(responses: ResponseStream, sender: Sender):
    responses.send(chunk(0), is_final=True)

    responses.fail(GenerationError("too late"))

    assert len(sender.chunks()) == 1


def test_whoever_asks_after_the_end_is_told_that_nobody_has_gone(
    responses: ResponseStream, sender: Sender
):
    assert not responses.is_cancelled
    sender.is_gone = True
    assert responses.is_cancelled

    responses.fail(RequestCancelledError("cancelled"))

    assert not responses.is_cancelled
    assert sender.num_misuses == 0


def test_a_response_that_cannot_be_sent_ends_the_request_with_an_error(
    responses: ResponseStream, sender: Sender, monkeypatch: pytest.MonkeyPatch
):
    send = sender.send

    def send_small_ones(response: object = None, flags: int = 0) -> None:
        if flags != FINAL:
            raise TritonModelException("no shared memory is left")
        send(response, flags)

    monkeypatch.setattr(sender, "send", send_small_ones)

    with pytest.raises(TritonModelException), responses:
        responses.send(chunk(0))

    assert len(sender.sent) == 1
    assert "internal error: TritonModelException" in sender.error().message()
