"""The chunks of one text, over members whose timing and failures are scripted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_members import Arrival, Members, Spoken, as_few_as_wanted
from fake_pb_utils import Call, PbUtils, Request

from chattts_triton.audio import to_pcm16
from chattts_triton.config import StreamConfig
from chattts_triton.constants import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
)
from chattts_triton.serving.edge import NUMPY_DTYPES, Tensors
from chattts_triton.serving.member_calls import MemberCalls
from chattts_triton.serving.record import RequestRecord
from chattts_triton.serving.text_stream import Mode, TextStream
from chattts_triton.tensors import CHATTTS_STREAM
from chattts_triton.vocoder.joining import trim_silence

INPUTS = {"TEXT": np.array([[b"hello"]], dtype=object)}
CONFIG = StreamConfig(
    first_chunk_codes=12,
    first_quality_chunk_codes=12,
    chunk_growth_percent=150,
    max_chunk_codes=96,
    look_ahead_codes=8,
    cross_fade_samples=512,
    auto_first_audio_ms=500,
)
TWO_SEGMENTS = [Spoken(150, pause=4800), Spoken(90)]
SMALL_CHUNKS = StreamConfig(
    first_chunk_codes=4,
    first_quality_chunk_codes=4,
    chunk_growth_percent=100,
    max_chunk_codes=4,
    look_ahead_codes=2,
    cross_fade_samples=256,
)
# Both decode the same steps, in windows of other lengths, so their sums are in another order.
TOLERANCE = 1e-6


class Streamed:
    """A text on its way through such members."""

    def __init__(
        self,
        members: Members,
        mode: Mode = Mode.QUALITY,
        config: StreamConfig = CONFIG,
        timeout_s: float = 60.0,
    ) -> None:
        self.members = members
        self.triton = PbUtils(members.models())
        self.record = RequestRecord.begin("r-1")
        calls = MemberCalls(self.triton, "chattts", Request(), {}, timeout_s)
        self.text = TextStream(calls, config, mode, timeout_s, self.record)

    def chunks(self) -> list[Tensors]:
        """All of them; only the last one says that it is."""
        chunks, flags = zip(*self.text.chunks(INPUTS), strict=True)
        assert list(flags) == [False] * (len(flags) - 1) + [True]
        return list(chunks)

    def models_called(self) -> list[str]:
        return [call.model for call in self.triton.calls]


def joined(chunks: list[Tensors], name: str = "AUDIO") -> np.ndarray:
    return np.concatenate([chunk[name][0] for chunk in chunks])


def values(chunks: list[Tensors], name: str) -> list[Any]:
    return [chunk[name].item() for chunk in chunks]


def test_each_chunk_has_the_declared_outputs():
    chunks = Streamed(Members(TWO_SEGMENTS)).chunks()

    assert len(chunks) > 4
    for chunk in chunks:
        assert set(chunk) == {spec.name for spec in CHATTTS_STREAM.outputs}
        for spec in CHATTTS_STREAM.outputs:
            assert chunk[spec.name].dtype == NUMPY_DTYPES[spec.dtype]
            assert chunk[spec.name].ndim == len(spec.shape) + 1
    assert values(chunks, "CHUNK_INDEX") == list(range(len(chunks)))
    assert set(values(chunks, "SEED_USED")) == {7}


def test_two_segments_and_the_pause_between_them_are_the_audio_of_a_whole_call():
    members = Members(TWO_SEGMENTS)

    audio = joined(Streamed(members).chunks())

    whole = members.whole_audio()
    assert audio.shape == whole.shape
    assert np.abs(audio - whole).max() <= TOLERANCE
    begin = SAMPLES_PER_CODE * 150 - 256
    assert not audio[begin : begin + 4800].any()
    assert audio[begin - 1] != 0
    assert audio[begin + 4800 :].any()


def test_the_first_chunks_are_of_the_operators_sizes():
    config = StreamConfig(
        first_chunk_codes=5,
        first_quality_chunk_codes=5,
        chunk_growth_percent=200,
        max_chunk_codes=15,
    )

    chunks = Streamed(Members([Spoken(200)]), config=config).chunks()

    sizes = [chunk["AUDIO"].shape[1] / SAMPLES_PER_CODE for chunk in chunks]
    assert sizes[:5] == [5, 10, 15, 15, 15]


def test_each_segment_begins_with_a_first_chunk_again():
    chunks = Streamed(Members(TWO_SEGMENTS), Mode.LOW_LATENCY).chunks()

    sizes = [chunk["AUDIO"].shape[1] / SAMPLES_PER_CODE for chunk in chunks]
    assert sizes[0] == 12
    assert sizes.count(12) == 2


def everything_at_once(_segment: int, _num_codes: int) -> int:
    return 2048


def now_and_then(seed: int) -> Arrival:
    random = np.random.default_rng(seed)
    return lambda _segment, _num_codes: int(random.choice([0, 0, 1, 7, 60]))


ARRIVALS = [as_few_as_wanted, everything_at_once, *map(now_and_then, range(4))]


@pytest.mark.parametrize("mode", [Mode.QUALITY, Mode.LOW_LATENCY])
@pytest.mark.parametrize("num_codes", [1, 12, 13, 64, 65, 72, 150])
@pytest.mark.parametrize("tells_late", [False, True])
def test_the_chunks_are_the_same_however_the_steps_come(
    mode: Mode, num_codes: int, tells_late: bool
):
    segments = [Spoken(num_codes, pause=100), Spoken(33)]
    expected = Streamed(Members(segments), mode).chunks()

    for arrival in ARRIVALS:
        members = Members(segments, arrival, tells_late=tells_late)
        chunks = Streamed(members, mode).chunks()

        assert len(chunks) == len(expected)
        for chunk, other in zip(chunks, expected, strict=True):
            for name in ("AUDIO", "PCM16", "CHUNK_INDEX", "FINISH_REASON"):
                assert np.array_equal(chunk[name], other[name]), name


@pytest.mark.parametrize("mode", [Mode.QUALITY, Mode.LOW_LATENCY])
@pytest.mark.parametrize("trim", [False, True])
def test_the_joined_16_bit_chunks_are_the_joined_audio_in_16_bits(mode: Mode, trim: bool):
    segments = [Spoken(100, pause=4800, silent=[slice(0, 40)]), Spoken(60)]

    chunks = Streamed(Members(segments, trim=trim, seed=99), mode).chunks()

    assert np.array_equal(joined(chunks, "PCM16"), to_pcm16(joined(chunks), 99))
    assert not np.array_equal(joined(chunks, "PCM16"), to_pcm16(joined(chunks), 98))


SILENT_PLACES = [
    [Spoken(150, silent=[slice(0, 40), slice(70, 110), slice(120, 150)])],
    [Spoken(60, pause=9600, silent=[slice(50, 60)]), Spoken(90, silent=[slice(0, 45)])],
    [Spoken(80, silent=[slice(0, 80)]), Spoken(70)],
    [Spoken(70), Spoken(80, silent=[slice(0, 80)])],
    [Spoken(70)],
    [Spoken(90, silent=[slice(0, 90)])],
]


@pytest.mark.parametrize("segments", SILENT_PLACES)
@pytest.mark.parametrize("config", [CONFIG, SMALL_CHUNKS])
@pytest.mark.parametrize("mode", [Mode.QUALITY, Mode.LOW_LATENCY])
def test_trim_cuts_what_it_would_cut_of_the_whole_audio(
    segments: list[Spoken], config: StreamConfig, mode: Mode
):
    untrimmed = joined(Streamed(Members(segments), mode, config).chunks())

    chunks = Streamed(Members(segments, trim=True), mode, config).chunks()

    assert np.array_equal(joined(chunks), trim_silence(untrimmed))
    assert all(chunk["AUDIO"].size for chunk in chunks[:-1])
    assert values(chunks, "CHUNK_INDEX") == list(range(len(chunks)))


def test_a_last_chunk_of_which_nothing_is_left_is_sent_empty_as_it_says_that_it_is_the_last():
    segments = [Spoken(70, silent=[slice(10, 70)])]

    chunks = Streamed(Members(segments, trim=True), Mode.LOW_LATENCY, SMALL_CHUNKS).chunks()

    assert chunks[-1]["AUDIO"].shape == (1, 0)
    assert chunks[-1]["PCM16"].shape == (1, 0)
    assert chunks[-1]["FINISH_REASON"].item() == b"stop"
    assert len(chunks) > 1


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        (["stop", "stop"], b"stop"),
        (["length", "stop"], b"length"),
        (["stop", "length"], b"length"),
        (["length", "length"], b"length"),
    ],
)
def test_only_the_last_chunk_has_a_finish_reason_which_tells_of_any_cut_segment(
    reasons: list[str], reason: bytes
):
    streamed = Streamed(Members([Spoken(80, each) for each in reasons]))

    found = values(streamed.chunks(), "FINISH_REASON")

    assert found == [b""] * (len(found) - 1) + [reason]
    assert streamed.record.num_cut == (1 if reason == b"length" else 0)


def test_what_gpt_says_about_the_text_is_passed_on_as_it_comes():
    chunks = Streamed(Members(TWO_SEGMENTS)).chunks()

    refined = values(chunks, "REFINED_TEXT")
    assert (refined[0], refined[-1]) == (b"refined 0", b"refined 1")
    assert set(values(chunks, "WARNINGS")) == {b'["refine_refused"]'}


def test_the_record_is_filled_in():
    streamed = Streamed(Members(TWO_SEGMENTS))

    audio = joined(streamed.chunks())

    record = streamed.record
    assert (record.id, record.seed, record.num_texts, record.characters) == ("r-1", 7, 1, 5)
    assert (record.steps, record.mode) == (240, "quality")
    assert record.audio_s == pytest.approx(len(audio) / SAMPLE_RATE_HZ)


@pytest.mark.parametrize(
    ("mode", "min_codes"), [(Mode.QUALITY, 64), (Mode.LOW_LATENCY, 20), (Mode.AUTO, 20)]
)
def test_the_text_is_opened_with_what_its_first_chunk_needs(mode: Mode, min_codes: int):
    streamed = Streamed(Members([Spoken(300)], step_s=1.0), mode)

    next(streamed.text.chunks(INPUTS))

    opened = streamed.triton.calls[1]
    assert opened.inputs["MIN_CODES"].item() == min_codes
    assert streamed.models_called() == ["preprocess", "gpt", "vocos_decoder"]


@pytest.mark.parametrize(
    ("step_s", "num_text_ids", "max_new_codes", "mode"),
    [
        (0.001, 40, 2048, "quality"),
        (0.0, 40, 2048, "quality"),  # nothing is known of the speed yet
        (0.0078, 40, 2048, "quality"),  # 64 steps in 499 ms
        (0.0079, 40, 2048, "low_latency"),
        (0.0079, 5, 2048, "quality"),  # it is over after 60 steps, as a rule
        (0.03, 1, 2048, "quality"),
        (0.05, 1, 2048, "low_latency"),
        (0.04, 40, 10, "quality"),  # it is over after 10 steps at the latest
    ],
)
def test_auto_takes_quality_where_its_first_chunk_comes_soon_enough(
    step_s: float, num_text_ids: int, max_new_codes: int, mode: str
):
    members = Members(
        TWO_SEGMENTS, step_s=step_s, num_text_ids=num_text_ids, max_new_codes=max_new_codes
    )
    streamed = Streamed(members, Mode.AUTO)

    chunks = streamed.chunks()

    assert set(values(chunks, "MODE_USED")) == {mode.encode()}
    assert streamed.record.mode == mode
    chosen = Streamed(Members(TWO_SEGMENTS), Mode(mode)).chunks()
    assert np.array_equal(joined(chunks), joined(chosen))


class Trigger:
    """Does something once, before the nth call of a member."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self._left = number
        self._act = act

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()


@pytest.mark.parametrize("member", ["gpt", "vocos_decoder"])
def test_a_cancelled_text_ends_within_one_call_and_is_generated_no_further(member: str):
    streamed = Streamed(Members([Spoken(500)]))
    streamed.members.before[member] = Trigger(2, streamed.text.cancel)

    with pytest.raises(RequestCancelledError, match=r"^cancelled after \d+ steps$"):
        streamed.chunks()

    assert streamed.members.num_closed == 1
    assert streamed.record.steps < 200


def test_a_text_that_is_cancelled_before_it_is_opened_is_not():
    streamed = Streamed(Members([Spoken(500)]))
    streamed.members.before["preprocess"] = streamed.text.cancel

    with pytest.raises(RequestCancelledError, match="cancelled after 0 steps"):
        streamed.chunks()

    assert streamed.members.is_open == {}


def test_a_failure_behind_a_cancellation_is_the_cancellation():
    """What gpt says to a read of a stream that was closed depends on where the read was."""
    streamed = Streamed(Members([Spoken(500)]))
    gpt = streamed.triton.models["gpt"]

    def cancel_and_fail(call: Call) -> Tensors | str:
        if call.inputs["CURSOR"].item() == 0:  # it is opened, or closed
            return gpt(call)
        streamed.text.cancel()
        return "invalid_request: gpt: STREAM_ID: got another"

    streamed.triton.models["gpt"] = cancel_and_fail

    with pytest.raises(RequestCancelledError, match="cancelled after 64 steps"):
        streamed.chunks()


def test_a_text_whose_time_is_over_ends_before_the_next_call():
    timeout_s = 0.2
    streamed = Streamed(Members([Spoken(500)]), timeout_s=timeout_s)
    over_s = time.monotonic() + timeout_s

    def wait_until_over() -> None:
        while time.monotonic() < over_s:
            pass

    streamed.members.before["gpt"] = Trigger(1, wait_until_over)

    with pytest.raises(DeadlineExceededError) as caught:
        streamed.chunks()

    assert str(caught.value) == "deadline of 200 ms exceeded after 64 steps"
    assert streamed.models_called() == ["preprocess", "gpt"]


@pytest.mark.parametrize(
    ("text", "error_type"),
    [
        ("invalid_request: {}: TEXT: missing", InvalidRequestError),
        ("overloaded: {}: 256 sequences wait", OverloadedError),
        ("deadline_exceeded: {}: deadline of 5 ms exceeded", DeadlineExceededError),
        ("Stub process '{}_0_0' is not healthy.", GenerationError),
    ],
)
@pytest.mark.parametrize(
    ("member", "number"),
    [("preprocess", 1), ("gpt", 1), ("gpt", 3), ("vocos_decoder", 1), ("vocos_decoder", 4)],
)
def test_the_error_of_any_member_at_any_time_ends_the_text(
    member: str, number: int, text: str, error_type: type[ChatTTSError]
):
    streamed = Streamed(Members(TWO_SEGMENTS))
    num_calls = 0

    def fail() -> str | None:
        nonlocal num_calls
        num_calls += 1
        return text.format(member) if num_calls == number else None

    streamed.members.before[member] = fail
    # A caller has no part in a read, so it is not to be told that its request is wrong.
    is_read = member == "gpt" and number > 1
    wanted = GenerationError if is_read and error_type is InvalidRequestError else error_type

    with pytest.raises(wanted):
        streamed.chunks()

    assert streamed.models_called()[-1] == member


def test_two_texts_have_streams_of_names_that_nobody_can_guess():
    first, second = Streamed(Members(TWO_SEGMENTS)), Streamed(Members(TWO_SEGMENTS))

    names = set()
    for streamed in (first, second):
        streamed.chunks()
        read = {
            call.inputs["STREAM_ID"].item() for call in streamed.triton.calls if call.model == "gpt"
        }
        assert len(read) == 1
        names |= read

    assert len(names) == 2
    assert all(len(name) == 32 for name in names)


def test_audio_of_another_length_than_its_steps_is_an_error():
    streamed = Streamed(Members(TWO_SEGMENTS))
    streamed.triton.models["vocos_decoder"] = lambda _call: {"AUDIO": np.zeros((1, 100), "f4")}

    with pytest.raises(GenerationError, match="100 samples of audio for"):
        streamed.chunks()
