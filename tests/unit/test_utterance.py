"""What becomes of a refinement: spoken, refused, or ended by an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chattts_triton.engine.sequence import FinishReason, Sequence, Stage
from chattts_triton.errors import (
    ChatTTSError,
    DeadlineExceededError,
    GenerationError,
    RequestCancelledError,
)
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.utterance import (
    MAX_REFINED_IDS,
    Prompting,
    Segment,
    Utterance,
    first_cause,
    max_refined_ids,
)

TEXT = "你好，世界。"


class FakeEncoder:
    """Text ids are code points."""

    def encode(self, text: str, speed: int, sample_text: str = "") -> list[int]:
        return [speed, *map(ord, sample_text + text)]

    def decode_refined(self, ids) -> str:
        return "".join(map(chr, ids))


class Followed:
    """An utterance whose sequences the test ends by hand."""

    def __init__(self, *, num_segments: int = 1, refine: bool = True, begin_all: bool = True):
        self.going_on: list[Sequence] = []
        self.num_changes = 0
        segments = [
            Segment(
                text=TEXT,
                text_ids=np.asarray([1, 2], dtype=np.int32),
                refine_ids=np.asarray([3, 4, 5], dtype=np.int32) if refine else None,
                params=SamplingParams(seed=7 + index, max_new_codes=20),
            )
            for index in range(num_segments)
        ]
        prompting = Prompting(
            request_id="r",
            speaker_embedding=np.zeros(8, dtype=np.float32),
            prompt_codes=np.zeros((2, 4), dtype=np.int32),
            prompt_text="示例",
            speed=6,
            deadline=None,
            priority=2,
        )
        self.utterance = Utterance(
            segments, prompting, [], FakeEncoder(), self.going_on.append, self.on_changed
        )
        self.first = self.utterance.sequences() if begin_all else []

    def on_changed(self, utterance: Utterance) -> None:
        assert utterance is self.utterance
        self.num_changes += 1


def end_refinement(sequence: Sequence, text: str, reason=FinishReason.STOP) -> None:
    for char in text:
        sequence.append(np.asarray([ord(char)]), np.zeros(8, dtype=np.float32))
    sequence.finish(reason)


def end_codes(sequence: Sequence, num_codes: int, reason=FinishReason.STOP) -> None:
    for _ in range(num_codes):
        sequence.append(np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.float32))
    sequence.finish(reason)


def test_a_text_that_is_not_to_be_refined_is_spoken_at_once_with_the_voices_sample():
    followed = Followed(refine=False)
    (spoken,) = followed.first

    end_codes(spoken, 3)

    assert spoken.stage is Stage.CODE
    assert spoken.prompt_codes.shape == (2, 4)
    assert followed.utterance.has_ended
    assert followed.num_changes == 1
    assert followed.utterance.refined_text == ""
    assert json.loads(followed.utterance.warnings_json) == []


def test_a_faithful_refinement_is_spoken_in_place_of_the_text():
    followed = Followed()
    (refining,) = followed.first
    refined = "你好[uv_break]，世界。"

    end_refinement(refining, refined)
    (spoken,) = followed.going_on
    end_codes(spoken, 3)

    assert refining.stage is Stage.TEXT
    assert refining.params.seed == spoken.params.seed == 7
    assert refining.prompt_codes is None
    assert spoken.text_ids.tolist() == FakeEncoder().encode(refined, 6, "示例")
    assert followed.utterance.refined_text == refined
    assert followed.utterance.warnings == []


@pytest.mark.parametrize(
    ("refined", "reason"),
    [
        ("今天天气真好啊", FinishReason.STOP),
        ("你好，世界。[Ptts]", FinishReason.STOP),
        ("你好，世界。", FinishReason.LENGTH),
        ("你好，世界。" + "[uv_break]" * 200, FinishReason.STOP),
    ],
)
def test_a_refinement_that_strays_or_does_not_end_or_is_too_long_is_refused(refined, reason):
    followed = Followed(num_segments=2)

    for refining in followed.first:
        end_refinement(refining, refined, reason)

    assert [s.text_ids.tolist() for s in followed.going_on] == [[1, 2], [1, 2]]
    assert followed.utterance.warnings == ["refine_refused"]
    assert followed.utterance.refined_text == ""


def test_a_failed_refinement_ends_its_text_without_speaking():
    followed = Followed()

    followed.first[0].finish(FinishReason.ABORT, GenerationError("out of memory"))

    assert followed.going_on == []
    assert followed.num_changes == 1
    assert isinstance(followed.utterance.errors[0], GenerationError)


def test_one_cut_segment_makes_the_whole_text_cut():
    followed = Followed(num_segments=2, refine=False)
    first, second = followed.first

    end_codes(first, 20, FinishReason.LENGTH)
    assert not followed.utterance.has_ended
    end_codes(second, 5)

    assert followed.utterance.finish_reason is FinishReason.LENGTH
    assert followed.num_changes == 1


def test_an_error_is_told_at_once_and_the_end_when_all_have_ended():
    followed = Followed(num_segments=2, refine=False)
    first, second = followed.first
    error = DeadlineExceededError("deadline of 5 ms exceeded after 0 steps")

    first.finish(FinishReason.ABORT, error)
    assert followed.num_changes == 1
    assert not followed.utterance.has_ended
    second.finish(FinishReason.ABORT, error)

    assert followed.utterance.has_ended
    assert followed.utterance.errors == [error, error]


def test_the_codes_of_a_refined_segment_can_be_followed_from_their_beginning():
    followed = Followed()
    (segment,) = followed.utterance.segments
    assert segment.codes is None

    end_refinement(followed.first[0], "你好，世界。")

    assert followed.num_changes == 1
    assert [segment.codes] == followed.going_on
    assert not followed.utterance.has_ended


def test_a_failed_refinement_has_no_codes_to_follow():
    followed = Followed()

    followed.first[0].finish(FinishReason.ABORT, GenerationError("out of memory"))

    assert followed.utterance.segments[0].codes is None


def test_segments_can_be_begun_one_by_one():
    followed = Followed(num_segments=2, refine=False, begin_all=False)
    utterance = followed.utterance

    first = utterance.sequence(0)
    assert [segment.codes for segment in utterance.segments] == [first, None]
    end_codes(first, 3)
    assert (utterance.has_ended, followed.num_changes) == (False, 0)

    second = utterance.sequence(1)
    assert utterance.begun == [first, second]
    assert [first.params.seed, second.params.seed] == [7, 8]
    end_codes(second, 4)
    assert (utterance.has_ended, followed.num_changes) == (True, 1)


def test_every_sequence_has_the_priority_of_its_request():
    followed = Followed()

    end_refinement(followed.first[0], "你好，世界。")

    assert [sequence.priority for sequence in followed.utterance.begun] == [2, 2]


CANCELLED = RequestCancelledError("cancelled after 3 steps")
FAILED, LATE = GenerationError("out of memory"), DeadlineExceededError("too late")


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([], None),
        ([CANCELLED], CANCELLED),
        ([CANCELLED, FAILED], FAILED),
        ([LATE, FAILED, CANCELLED], LATE),
    ],
)
def test_a_cancellation_that_another_error_caused_is_not_the_cause(
    errors: list[ChatTTSError], cause: ChatTTSError | None
):
    assert first_cause(errors) is cause


@pytest.mark.parametrize(("num_prompt_ids", "cap"), [(3, 38), (100, 232), (500, MAX_REFINED_IDS)])
def test_a_refinement_is_capped_in_proportion_to_its_prompt(num_prompt_ids, cap):
    assert max_refined_ids(num_prompt_ids) == cap


def test_codes_that_end_at_once_are_told_of_as_the_end_only_once():
    ends = []
    followed = Followed()
    followed.utterance._on_changed = lambda utterance: ends.append(utterance.has_ended)
    followed.utterance._go_on = lambda codes: codes.finish(
        FinishReason.ABORT, GenerationError("the prompt does not fit")
    )

    end_refinement(followed.first[0], "你好，世界。")

    assert ends == [False, True]
