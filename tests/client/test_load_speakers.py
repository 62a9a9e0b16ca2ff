"""The speakers of a load against a gRPC server that plays Triton."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from fake_streams import STEP_SAMPLES, silence
from fake_triton import FakeTriton

from chattts_triton.errors import ChatTTSError
from chattts_triton.load.take import Take
from chattts_triton.load.triton_speaker import VoiceOptions, triton_speaker

FULL = (grpc.StatusCode.UNAVAILABLE, "in ensemble 'chattts', gpt: 272 sequences are waiting")
FAULT = (grpc.StatusCode.INTERNAL, "in ensemble 'chattts', gpt: the step failed")


def speak(triton: FakeTriton, text: str, seed: int, **how: object) -> Take:
    arguments: dict[str, object] = {"is_stream": True, "timeout_s": 20.0, **how}
    options = VoiceOptions(voice="alder", max_new_tokens=30)

    async def once() -> Take:
        async with triton_speaker(triton.url, "chattts", options, **arguments) as speaker:
            return await speaker.speak(text, seed)

    return asyncio.run(once())


def test_a_call_is_one_piece_that_comes_at_the_end(triton: FakeTriton):
    take = speak(triton, "你好", 7, is_stream=False)

    (arrival,) = take.arrivals
    assert (arrival.at_s, arrival.num_samples) == (take.ended_s, 3 * STEP_SAMPLES - 256)
    assert (take.finish_reason, take.failure, take.is_cut) == ("stop", None, False)


def test_a_stream_is_as_many_pieces_as_chunks(triton: FakeTriton):
    take = speak(triton, "你好", 7, mode="quality")

    assert [one.num_samples for one in take.arrivals] == [STEP_SAMPLES, STEP_SAMPLES, 256]
    assert [one.at_s for one in take.arrivals] == sorted(one.at_s for one in take.arrivals)
    assert take.first_audio_s == take.arrivals[0].at_s
    assert (take.mode, take.finish_reason) == ("quality", "stop")


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_options_reach_the_server(triton: FakeTriton, is_stream: bool):
    speak(triton, "你好", 7, is_stream=is_stream)

    inputs = triton.last_inputs
    assert inputs["SEED"][2] == [7]
    assert inputs["VOICE"][2] == [b"alder"]
    assert inputs["MAX_NEW_TOKENS"][2] == [30]
    assert "MODE" not in inputs


def test_audio_that_was_cut_is_known(triton: FakeTriton):
    assert speak(triton, "你" * 40, 7).is_cut
    assert speak(triton, "你" * 40, 7, is_stream=False).is_cut


def test_a_full_queue_is_a_refusal(triton: FakeTriton):
    triton.refusal = FULL
    triton.stream_steps = lambda inputs: [FULL]

    for is_stream in (True, False):
        take = speak(triton, "你好", 7, is_stream=is_stream)
        assert take.failure is not None
        assert (take.failure.kind, take.failure.is_refusal) == ("overloaded", True)


def test_a_fault_of_the_server_is_a_failure_with_its_text(triton: FakeTriton):
    triton.refusal = FAULT

    take = speak(triton, "你好", 7, is_stream=False)

    assert take.failure is not None
    assert (take.failure.kind, take.failure.is_refusal) == ("generation", False)
    assert "the step failed" in take.failure.message


def test_a_stream_that_breaks_keeps_what_came_and_is_a_failure(triton: FakeTriton):
    triton.stream_steps = lambda inputs: [silence(0), silence(1), FAULT]

    take = speak(triton, "你好", 7)

    assert len(take.arrivals) == 2
    assert take.failure is not None
    assert not take.is_whole


def test_a_stream_that_never_ends_is_late(triton: FakeTriton):
    triton.stream_steps = lambda inputs: [silence(0), threading.Event()]

    take = speak(triton, "你好", 7, timeout_s=0.5)

    assert take.failure is not None
    assert take.failure.kind == "deadline_exceeded"


def test_a_server_without_the_model_is_no_speaker(triton: FakeTriton):
    triton.is_model_loaded = False

    with pytest.raises(ChatTTSError, match=r"no server, or it has no model 'chattts' loaded$"):
        speak(triton, "你好", 7)

    assert triton.requests == []
