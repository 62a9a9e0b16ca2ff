import numpy as np
import pytest

from training.pitch import pitch_hz

RATE_HZ = 24_000


def voiced(frequency_hz, duration_s=0.5):
    """A buzz of ten harmonics, as a throat makes it."""
    time_s = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    harmonics = [np.sin(2 * np.pi * n * frequency_hz * time_s) / n for n in range(1, 11)]
    return (0.2 * np.sum(harmonics, axis=0)).astype(np.float32)


def noise(duration_s=0.5):
    samples = np.random.default_rng(0).normal(0, 0.1, round(duration_s * RATE_HZ))
    return samples.astype(np.float32)


@pytest.mark.parametrize("frequency_hz", [75, 102, 170, 340])
def test_the_pitch_of_a_buzz_is_found_in_every_frame(frequency_hz):
    pitch = pitch_hz(voiced(frequency_hz), RATE_HZ)

    assert len(pitch) > 40
    assert np.abs(pitch / frequency_hz - 1).max() < 0.01


def test_the_sample_rate_only_scales():
    slow, fast = (pitch_hz(voiced(100), rate_hz) for rate_hz in (RATE_HZ, 2 * RATE_HZ))

    assert slow.mean() == pytest.approx(100, rel=0.01)
    assert fast.mean() == pytest.approx(200, rel=0.01)


def test_noise_and_silence_and_next_to_nothing_have_no_pitch():
    assert len(pitch_hz(noise(), RATE_HZ)) == 0
    assert len(pitch_hz(np.zeros(RATE_HZ, np.float32), RATE_HZ)) == 0
    assert len(pitch_hz(voiced(100, duration_s=0.01), RATE_HZ)) == 0


def test_quiet_frames_do_not_count():
    loud_and_quiet = np.concatenate([voiced(100), 0.01 * voiced(200)])

    pitch = pitch_hz(loud_and_quiet, RATE_HZ)

    assert pitch.mean() == pytest.approx(100, rel=0.01)
