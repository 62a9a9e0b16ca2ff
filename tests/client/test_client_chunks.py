from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chattts_client import AudioChunk, join_chunks


def chunk_at(index: int, **changes: object) -> AudioChunk:
    samples = np.array([index, 0.5, -0.5], np.float32) / 10
    chunk = AudioChunk(
        samples=samples,
        pcm16=(samples * 1000).astype(np.int16),
        index=index,
        sample_rate=24_000,
        seed=7,
        mode="low_latency",
        finish_reason=None,
    )
    return replace(chunk, **changes)  # type: ignore[arg-type]


LAST = chunk_at(1, finish_reason="length", refined_text="一个", warnings=("refine_refused",))


def test_joined_chunks_are_the_audio_of_the_whole_text():
    audio = join_chunks(iter([chunk_at(0), LAST]))

    assert audio.samples.tolist() == pytest.approx([0.0, 0.05, -0.05, 0.1, 0.05, -0.05])
    assert audio.pcm16 is not None
    assert audio.pcm16.tolist() == [0, 50, -50, 100, 50, -50]
    assert (audio.seed, audio.finish_reason, audio.sample_rate) == (7, "length", 24_000)
    assert (audio.refined_text, audio.warnings) == ("一个", ("refine_refused",))


def test_audio_of_which_a_chunk_has_no_16_bits_has_none():
    assert join_chunks([chunk_at(0, pcm16=None), LAST]).pcm16 is None


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], r"got 0, without the last one"),
        ([chunk_at(0)], r"got 1, without the last one"),
        ([LAST], r"got the indices \[1\]"),
        ([LAST, chunk_at(0)], r"got the indices \[1, 0\]"),
        ([chunk_at(0), chunk_at(0), LAST], r"got the indices \[0, 0, 1\]"),
    ],
)
def test_chunks_that_are_not_a_whole_stream_are_not_joined(chunks: list[AudioChunk], message: str):
    with pytest.raises(ValueError, match=message):
        join_chunks(chunks)


def test_the_bytes_of_a_chunk_are_the_servers_own_16_bits():
    chunk = chunk_at(0, pcm16=np.array([1, -2, 0x0102], np.int16))

    assert chunk.pcm16_bytes() == b"\x01\x00\xfe\xff\x02\x01"


def test_the_bytes_of_a_chunk_without_16_bits_are_made_of_its_samples():
    chunk = chunk_at(0, samples=np.array([0.5, 2.0, -2.0], np.float32), pcm16=None)

    assert np.frombuffer(chunk.pcm16_bytes(), "<i2").tolist() == [16384, 32767, -32767]


def test_a_chunk_is_the_last_one_when_it_tells_how_the_audio_ended():
    assert LAST.is_last
    assert not chunk_at(0).is_last
    assert chunk_at(0).duration_s == 3 / 24_000
