from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from chattts_client import Audio

SAMPLES = np.array([0.0, 0.5, -0.5, 1.0, -1.0], np.float32)


def audio_of(samples: np.ndarray, pcm16: np.ndarray | None = None) -> Audio:
    return Audio(samples, sample_rate=24_000, seed=1, finish_reason="stop", pcm16=pcm16)


def written(audio: Audio) -> list[int]:
    pcm16, _ = soundfile.read(io.BytesIO(audio.wav_bytes()), dtype="int16")
    return list(pcm16)


def test_the_duration_is_that_of_the_samples():
    assert audio_of(np.zeros(36_000, np.float32)).duration_s == 1.5


def test_a_file_is_mono_and_16_bit_at_24_khz(tmp_path: Path):
    path = tmp_path / "a.wav"

    audio_of(SAMPLES).write(path)

    info = soundfile.info(path)
    assert (info.samplerate, info.channels, info.frames) == (24_000, 1, 5)
    assert (info.format, info.subtype) == ("WAV", "PCM_16")
    assert path.read_bytes().count(b"RIFF") == 1


def test_the_servers_own_16_bits_are_written_unchanged():
    pcm16 = np.array([1, -32768, 32767], np.int16)

    assert written(audio_of(np.zeros(3, np.float32), pcm16)) == [1, -32768, 32767]


def test_b_57_full_scale_does_not_wrap():
    assert written(audio_of(SAMPLES)) == [0, 16384, -16384, 32767, -32767]


@pytest.mark.parametrize(
    ("samples", "pcm16"),
    [([0.0, 0.0], [0, 0]), ([], []), ([1.0001, 0.5], [32767, 16384]), ([-7.0], [-32767])],
)
def test_b_56_loudness_does_not_depend_on_the_peak(samples: list[float], pcm16: list[int]):
    assert written(audio_of(np.array(samples, np.float32))) == pcm16


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_b_56_samples_that_are_no_numbers_are_an_error(bad: float):
    with pytest.raises(ValueError, match="NaN or infinity"):
        audio_of(np.array([bad, 0.1], np.float32)).wav_bytes()


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        audio_of(SAMPLES).write(tmp_path / "missing" / "a.wav")
