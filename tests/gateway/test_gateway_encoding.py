"""Each format, made piece by piece and decoded again."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest
import soundfile

from chattts_triton.constants import SAMPLE_RATE_HZ
from chattts_triton.gateway.encoding import ResponseFormat, encoder_of

PIECE_SAMPLES = 7_000
MAX_DELAY_SAMPLES = 2_500  # what a decoder may put before the first sample
LOSSY_CORRELATION = 0.99  # a delay of half a sample costs 0.002 of it at 500 Hz


def sweep(seconds: float = 3.0) -> np.ndarray:
    """A tone that rises and swells: no piece of it is like another."""
    times = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    tone = np.sin(2 * np.pi * (200 + 50 * times) * times)
    return (9_000 * tone * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * times))).astype(np.int16)


def encoded(
    pcm16: np.ndarray, response_format: ResponseFormat, *, is_streamed: bool
) -> list[bytes]:
    encoder = encoder_of(response_format, is_streamed=is_streamed)
    pieces = np.split(pcm16, range(PIECE_SAMPLES, len(pcm16), PIECE_SAMPLES))
    return [*(encoder.encode(piece) for piece in pieces), encoder.finish()]


def decoded(data: bytes) -> np.ndarray:
    """(S,) int16 at 24 kHz."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(io.BytesIO(data)) as container:
        frames = [each for frame in container.decode(audio=0) for each in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def best_correlation(samples: np.ndarray, others: np.ndarray) -> float:
    """At the delay, of those that a decoder may have, where they are most alike."""
    length = len(samples)
    products = np.fft.rfft(others, 2 * length) * np.conj(np.fft.rfft(samples, 2 * length))
    delay = int(np.fft.irfft(products)[:MAX_DELAY_SAMPLES].argmax())
    return float(np.corrcoef(samples, others[delay : delay + length])[0, 1])


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("response_format", ["wav", "flac"])
def test_a_format_without_loss_gives_the_samples_back(
    response_format: ResponseFormat, is_streamed: bool
):
    samples = sweep()

    data = b"".join(encoded(samples, response_format, is_streamed=is_streamed))

    np.testing.assert_array_equal(decoded(data), samples)


@pytest.mark.parametrize("response_format", ["mp3", "opus"])
def test_a_format_with_loss_sounds_the_same_and_has_no_gap(response_format: ResponseFormat):
    samples = sweep()

    heard = decoded(b"".join(encoded(samples, response_format, is_streamed=True)))

    assert 0 <= len(heard) - len(samples) <= MAX_DELAY_SAMPLES
    padded = np.concatenate([heard, np.zeros(MAX_DELAY_SAMPLES, np.int16)])
    assert best_correlation(samples, padded) > LOSSY_CORRELATION


def test_pcm_is_the_samples_themselves():
    samples = sweep()

    assert b"".join(encoded(samples, "pcm", is_streamed=True)) == samples.astype("<i2").tobytes()


@pytest.mark.parametrize("response_format", ["mp3", "opus", "flac", "wav", "pcm"])
def test_bytes_come_while_samples_go_in(response_format: ResponseFormat):
    parts = encoded(sweep(), response_format, is_streamed=True)

    sizes = [len(part) for part in parts[:-1]]

    assert all(sizes)


def test_a_streamed_wav_has_one_header_of_open_length():
    data = b"".join(encoded(sweep(), "wav", is_streamed=True))

    assert data.count(b"RIFF") == data.count(b"data") == 1
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"


def test_a_whole_wav_tells_its_length():
    samples = sweep()

    data = b"".join(encoded(samples, "wav", is_streamed=False))

    read, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == SAMPLE_RATE_HZ
    np.testing.assert_array_equal(read, samples)
    assert int.from_bytes(data[40:44], "little") == 2 * len(samples) == len(data) - 44


def test_an_empty_piece_changes_nothing():
    samples = sweep(0.5)
    encoder = encoder_of("mp3", is_streamed=True)

    parts = [encoder.encode(samples), encoder.encode(samples[:0]), encoder.finish()]

    assert b"".join(parts) == b"".join(
        [(again := encoder_of("mp3", is_streamed=True)).encode(samples), again.finish()]
    )
