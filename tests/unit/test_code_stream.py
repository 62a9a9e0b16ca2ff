"""Reads of a text's hidden states, over an engine that is stepped by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.fakes import DIMS, FakeModelRunner, make_engine, run_alone, run_until_idle

from chattts_triton.engine.sequence import FinishReason
from chattts_triton.errors import (
    GenerationError,
    InvalidRequestError,
    RequestCancelledError,
)
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.code_stream import CodeStream, CodeStreams, Read, nothing_read
from chattts_triton.serving.edge import NUMPY_DTYPES, column
from chattts_triton.serving.record import RequestRecord
from chattts_triton.serving.utterance import Prompting, Segment, Utterance
from chattts_triton.tensors import GPT

REFINE_CAP = 38  # of a prompt of three ids


class Encoder:
    """What is refined strays in any case, so a text is spoken as it was sent."""

    def encode(self, text: str, _speed: int, _sample: str = "") -> list[int]:
        return list(map(ord, text))

    def decode_refined(self, _ids: Any) -> str:
        return "something else altogether"


class Streamed:
    """A text in an engine; each segment ends after so many steps, or at the cap of 50."""

    def __init__(
        self, *num_steps: int, refine: bool = False, runner: FakeModelRunner | None = None
    ) -> None:
        self.engine = make_engine(runner or FakeModelRunner())
        self.stream = CodeStream("r")
        self.stream.utterance = Utterance(
            [self._segment(each, refine) for each in num_steps],
            Prompting("r", np.zeros(8, np.float32), None, "", 5, None, 1),
            [],
            Encoder(),  # type: ignore[arg-type]
            self.engine.continue_request,
            lambda _utterance: self.stream.advance(),
        )
        self.num_due = 0
        self.engine.add_request([self.stream.utterance.sequence(0)])

    def _segment(self, num_steps: int, refine: bool) -> Segment:
        return Segment(
            text="你好",
            text_ids=np.asarray([num_steps], np.int32),
            refine_ids=np.asarray([7, 7, 7], np.int32) if refine else None,
            params=SamplingParams(seed=0, max_new_codes=50),
        )

    def read(self, segment: int, cursor: int, min_codes: int) -> Read:
        """Submit a read; `num_due` counts how often one could be answered."""
        read = Read("s", segment, cursor, min_codes)
        self.stream.submit(read, self._count)
        return read

    def begin_behind(self, segment: int) -> None:
        self.stream.begin_behind(segment, self.engine.continue_request)

    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    def outputs(self, read: Read) -> dict[str, np.ndarray]:
        return self.stream.outputs(read, DIMS)[0]

    def is_last(self, read: Read) -> bool:
        return self.stream.outputs(read, DIMS)[1]

    def _count(self) -> None:
        self.num_due += 1


def test_a_read_waits_for_the_steps_that_it_wants():
    streamed = Streamed(30)

    read = streamed.read(0, 0, 5)
    assert streamed.num_due == 0
    streamed.step(3)  # the first one makes two steps: the prompt's, and the one behind it
    assert streamed.num_due == 0
    streamed.step(1)

    assert streamed.num_due == 1
    assert streamed.outputs(read)["NUM_CODES"].item() == 5
    streamed.step(20)
    assert streamed.num_due == 1


def test_a_read_of_steps_that_are_there_is_answered_at_once():
    streamed = Streamed(30)
    streamed.step(9)

    streamed.read(0, 4, 6)

    assert streamed.num_due == 1


def test_a_read_gets_all_that_has_come_behind_its_cursor():
    streamed = Streamed(30)
    read = streamed.read(0, 3, 2)
    streamed.step(11)

    outputs = streamed.outputs(read)

    alone = run_alone(30)
    assert outputs["NUM_CODES"].item() == 9
    assert np.array_equal(outputs["HIDDENS"][0], alone.hiddens[3:12])
    assert np.array_equal(outputs["CODES"][0], alone.tokens[3:12])
    assert outputs["FINISH_REASON"].item() == b""
    assert not streamed.is_last(read)


def test_reads_one_behind_the_other_are_the_whole_segment():
    streamed, alone = Streamed(23), run_alone(23)
    parts = []
    cursor = 0

    while True:
        read = streamed.read(0, cursor, 4)
        while streamed.num_due == 0:
            streamed.step(1)
        streamed.num_due = 0
        outputs = streamed.outputs(read)
        parts.append(outputs["HIDDENS"][0, : outputs["NUM_CODES"].item()])
        cursor += len(parts[-1])
        if outputs["FINISH_REASON"].item():
            break

    assert outputs["FINISH_REASON"].item() == b"stop"
    assert streamed.is_last(read)
    assert np.array_equal(np.concatenate(parts), alone.hiddens)


@pytest.mark.parametrize(
    ("num_steps", "reason"), [(10, b"stop"), (FakeModelRunner.NEVER, b"length")]
)
def test_the_end_of_a_segment_answers_a_read_that_wants_more(num_steps: int, reason: bytes):
    streamed = Streamed(num_steps)
    read = streamed.read(0, 5, 2048)

    run_until_idle(streamed.engine)

    assert streamed.num_due == 1
    outputs = streamed.outputs(read)
    assert outputs["FINISH_REASON"].item() == reason
    assert 5 + outputs["NUM_CODES"].item() == run_alone(num_steps).num_steps


def test_a_read_behind_the_last_step_learns_of_the_end_and_gets_one_row_that_does_not_count():
    streamed = Streamed(10)
    run_until_idle(streamed.engine)
    num_steps = run_alone(10).num_steps

    read = streamed.read(0, num_steps, 1)

    assert streamed.num_due == 1
    outputs = streamed.outputs(read)
    assert outputs["NUM_CODES"].item() == 0
    assert outputs["HIDDENS"].shape == (1, 1, 8)
    assert outputs["CODES"].shape == (1, 1, 4)
    assert outputs["FINISH_REASON"].item() == b"stop"


def test_a_second_read_while_one_is_open_is_refused_and_the_first_is_answered():
    streamed = Streamed(30)
    streamed.read(0, 0, 5)

    with pytest.raises(InvalidRequestError, match=r"^STREAM_ID: another read of this stream is"):
        streamed.read(0, 0, 1)
    run_until_idle(streamed.engine)

    assert streamed.num_due == 1


def test_only_the_first_segment_begins_by_itself_and_no_other_can_be_read():
    streamed = Streamed(10, 12)
    run_until_idle(streamed.engine)

    with pytest.raises(InvalidRequestError, match=r"^SEGMENT: got 1, wanted 0 to 0 at this time"):
        streamed.read(1, 0, 1)

    assert not streamed.stream.utterance.has_ended


def test_the_next_segment_is_read_once_it_has_begun():
    streamed = Streamed(10, 12)
    run_until_idle(streamed.engine)
    first = streamed.read(0, 0, 2048)
    assert streamed.outputs(first)["FINISH_REASON"].item() == b"stop"
    assert not streamed.is_last(first)

    streamed.begin_behind(0)
    read = streamed.read(1, 0, 2048)
    run_until_idle(streamed.engine)

    assert streamed.num_due == 2
    assert streamed.is_last(read)
    assert np.array_equal(streamed.outputs(read)["HIDDENS"][0], run_alone(12).hiddens)


def test_however_often_a_segment_is_read_only_the_one_behind_it_begins():
    streamed = Streamed(10, 12, 14)

    for _ in range(3):
        streamed.begin_behind(0)
    assert len(streamed.stream.utterance.begun) == 2
    streamed.begin_behind(1)

    assert [len(each.text_ids) for each in streamed.stream.utterance.begun] == [1, 1, 1]
    assert streamed.engine.num_waiting == 3


def test_there_is_no_segment_behind_the_last_one():
    streamed = Streamed(10, 12)

    for segment in (0, 1, 1):
        streamed.begin_behind(segment)

    assert len(streamed.stream.utterance.begun) == 2
    with pytest.raises(InvalidRequestError, match=r"^SEGMENT: got 2, wanted 0 to 1"):
        streamed.read(2, 0, 1)


def test_a_stream_that_was_closed_never_begins_its_next_segment():
    streamed = Streamed(10, 12)
    run_until_idle(streamed.engine)

    streamed.stream.close()
    streamed.begin_behind(0)

    assert streamed.engine.num_waiting == 0
    assert len(streamed.stream.utterance.begun) == 1


def test_a_cancelled_stream_answers_its_open_read_with_the_cancellation():
    streamed = Streamed(FakeModelRunner.NEVER)
    streamed.read(0, 0, 2048)
    streamed.step(3)

    streamed.stream.close()
    streamed.engine.abort("r")
    streamed.step(1)

    assert streamed.num_due == 1
    assert isinstance(streamed.stream.error, RequestCancelledError)
    assert streamed.engine.num_running == 0


def test_an_error_of_a_later_segment_fails_reads_of_the_first_as_well():
    """A caller must not go on hearing a text whose end will never come."""
    streamed = Streamed(40, 12, runner=FakeModelRunner(broken_prompts={12}))
    streamed.read(0, 0, 2048)
    streamed.step(5)
    assert streamed.num_due == 0

    streamed.begin_behind(0)
    streamed.step(2)

    assert streamed.num_due == 1
    assert isinstance(streamed.stream.error, GenerationError)


def test_a_segment_that_fails_as_it_begins_fails_the_stream_without_a_lock_left_behind():
    streamed = Streamed(40, 12)
    streamed.read(0, 0, 2048)
    error = RequestCancelledError("the server is stopping")

    streamed.stream.begin_behind(0, lambda sequence: sequence.finish(FinishReason.ABORT, error))

    assert streamed.num_due == 1
    assert streamed.stream.error is error


def test_a_read_waits_for_the_refinement_and_then_for_the_codes():
    streamed = Streamed(20, refine=True)
    read = streamed.read(0, 0, 5)
    assert streamed.stream.utterance.segments[0].codes is None

    streamed.step(REFINE_CAP)
    assert streamed.num_due == 0
    run_until_idle(streamed.engine)

    assert streamed.num_due == 1
    outputs = streamed.outputs(read)
    assert outputs["WARNINGS"].item() == b'["refine_refused"]'
    assert np.array_equal(outputs["HIDDENS"][0], run_alone(20).hiddens)


def test_a_failed_refinement_fails_the_open_read():
    streamed = Streamed(20, refine=True, runner=FakeModelRunner(failing_prompts={7}))
    streamed.read(0, 0, 5)

    streamed.step(1)

    assert streamed.num_due == 1
    assert isinstance(streamed.stream.error, GenerationError)


def test_the_record_learns_of_the_steps_and_of_the_time_in_the_queue():
    streamed = Streamed(30)
    streamed.stream.record = RequestRecord.begin("r-1")
    read = streamed.read(0, 0, 5)
    streamed.step(5)

    record = RequestRecord.from_tensor(streamed.outputs(read)["RECORD"])

    assert record is not None
    assert (record.id, record.steps) == ("r-1", 6)
    assert record.queue_ms is not None


def test_a_sequence_that_fails_after_its_read_was_due_is_no_end_of_a_segment():
    streamed = Streamed(30)
    read = streamed.read(0, 0, 5)
    streamed.step(6)
    assert streamed.num_due == 1
    streamed.engine.abort("r")
    streamed.step(1)

    with pytest.raises(RequestCancelledError) as caught:
        streamed.outputs(read)

    assert caught.value is not streamed.stream.error  # or its frames would be kept with it


def test_a_segment_that_was_read_is_let_go_and_cannot_be_read_again():
    streamed = Streamed(5, 5)
    streamed.step(8)
    streamed.read(0, 0, 50)
    streamed.begin_behind(0)
    streamed.step(8)
    first = streamed.stream.utterance.segments[0].codes

    read = streamed.read(1, 0, 50)

    assert (first.num_steps, len(first.hiddens_between(0, 50))) == (5, 0)
    assert streamed.outputs(read)["NUM_CODES"].item() == 5
    with pytest.raises(InvalidRequestError, match=r"^SEGMENT: got 0, wanted '?1 and on"):
        streamed.read(0, 0, 1)


def test_outputs_are_as_declared_whether_there_is_anything_or_not():
    streamed = Streamed(30)
    read = streamed.read(0, 0, 5)
    streamed.step(5)

    for outputs in (streamed.outputs(read), nothing_read(DIMS)):
        specs = {spec.name: spec for spec in GPT.outputs if spec.name != "STEP_SECONDS"}
        assert set(outputs) == set(specs)
        for name, array in outputs.items():
            assert array.dtype == NUMPY_DTYPES[specs[name].dtype]
            assert array.ndim == len(specs[name].shape) + 1


def test_a_stream_is_idle_when_no_read_is_open_and_none_was_for_so_long():
    streamed = Streamed(30)
    assert streamed.stream.is_idle(0.0)
    assert not streamed.stream.is_idle(60.0)

    streamed.read(0, 0, 5)
    assert not streamed.stream.is_idle(0.0)
    run_until_idle(streamed.engine)

    assert streamed.stream.is_idle(0.0)
    assert not streamed.stream.is_idle(60.0)


def test_streams_are_found_by_their_names_until_they_are_removed():
    streams, stream, other = CodeStreams(), CodeStream("r"), CodeStream("q")
    streams.add("s", stream)
    streams.add("t", other)

    assert streams.find("s") is stream
    assert len(streams) == 2
    with pytest.raises(InvalidRequestError, match=r"^STREAM_ID: got 's', wanted one that is not"):
        streams.add("s", other)

    assert streams.remove("s") is stream
    assert streams.remove("s") is None
    with pytest.raises(InvalidRequestError, match=r"^STREAM_ID: got 's', wanted that of a stream"):
        streams.find("s")
    assert streams.find("t") is other


def test_idle_streams_are_taken_and_those_that_wait_for_steps_are_not():
    streams, idle, busy = CodeStreams(), Streamed(30), Streamed(30)
    streams.add("idle", idle.stream)
    streams.add("busy", busy.stream)
    busy.read(0, 0, 5)

    assert streams.take_idle(60.0) == []
    assert streams.take_idle(0.0) == [idle.stream]
    assert streams.take_idle(0.0) == []
    assert streams.find("busy") is busy.stream


def inputs_of(**values: Any) -> dict[str, np.ndarray]:
    arrays = {name.upper(): column([value], np.int32) for name, value in values.items()}
    return {"STREAM_ID": column([b"s"], np.object_), **arrays}


def test_a_read_is_taken_from_its_tensors_and_what_is_left_out_is_zero():
    assert Read.of(inputs_of(segment=1, cursor=20, min_codes=12)) == Read("s", 1, 20, 12)
    assert Read.of(inputs_of()) == Read("s", 0, 0, 0)


@pytest.mark.parametrize("name", ["SEGMENT", "CURSOR", "MIN_CODES"])
@pytest.mark.parametrize("value", [[[-1]], [[2049]], [[1, 2]], [[1], [2]]])
def test_a_number_of_a_read_that_is_out_of_range_is_refused_by_its_name(name: str, value: Any):
    with pytest.raises(InvalidRequestError, match=f"^{name}: got .*, wanted one value of 0 to"):
        Read.of(inputs_of() | {name: np.asarray(value, np.int32)})


@pytest.mark.parametrize("names", [[b""], [b"x" * 129], [b"\xff"], [b"a", b"b"]])
def test_a_name_that_no_stream_can_have_is_refused(names: list[bytes]):
    with pytest.raises(InvalidRequestError, match=r"^STREAM_ID: "):
        Read.of({"STREAM_ID": column(names, np.object_)})
