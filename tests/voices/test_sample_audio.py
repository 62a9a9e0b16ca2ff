import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from voices_fixtures import RATE_HZ, speech_like

from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.voices.sample_audio import read_sample

Floats = npt.NDArray[np.float32]


def tone(duration_s: float, rate_hz: int = RATE_HZ, level: float = 0.5) -> Floats:
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    return (level * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)


def noise(duration_s: float) -> Floats:
    """What FLAC cannot make small."""
    num_samples = round(duration_s * RATE_HZ)
    return np.random.default_rng(0).uniform(-0.5, 0.5, num_samples).astype(np.float32)


def test_samples_at_our_rate_are_read_as_they_are(tmp_path: Path) -> None:
    path, audio = tmp_path / "a.wav", speech_like(1.5)
    soundfile.write(path, audio, RATE_HZ, subtype="FLOAT")

    got = read_sample(path)

    assert got.dtype == np.float32
    assert np.array_equal(got, audio)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000, 192_000])
def test_any_rate_becomes_24_khz(tmp_path: Path, rate_hz: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(2.0, rate_hz), rate_hz)

    got = read_sample(path)

    assert len(got) == 2 * RATE_HZ
    inner = slice(RATE_HZ // 10, -RATE_HZ // 10)  # a filter has no neighbours at the ends
    assert np.abs(got - tone(2.0))[inner].max() <= 2e-3


def test_a_tone_above_half_the_rate_does_not_fold_back(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    time_s = np.arange(96_000) / 48_000
    high = 0.3 * np.sin(2 * np.pi * 16_000 * time_s)
    soundfile.write(path, high + tone(2.0, 48_000), 48_000, subtype="FLOAT")

    got = read_sample(path)

    assert np.abs(got - tone(2.0))[2400:-2400].max() <= 2e-3


def test_channels_are_averaged(tmp_path: Path) -> None:
    path, audio = tmp_path / "a.wav", speech_like(1.0)
    soundfile.write(path, np.stack([audio, 3 * audio], axis=1), RATE_HZ, subtype="FLOAT")

    assert np.abs(read_sample(path) - 2 * audio).max() <= 1e-6


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_the_usual_formats_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, speech_like(1.2), RATE_HZ)

    assert len(read_sample(path)) == round(1.2 * RATE_HZ)


@pytest.mark.parametrize("num_samples", [8_000, 174_762])
def test_the_shortest_and_the_longest_sample_are_allowed(tmp_path: Path, num_samples: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, speech_like(num_samples / 8_000, 8_000), 8_000)

    assert len(read_sample(path)) == 3 * num_samples


@pytest.mark.parametrize(
    ("num_samples", "rate_hz", "message"),
    [
        (7_999, 8_000, "has 1.00 s, wanted 1 to 21.8 s"),
        (174_763, 8_000, "has 21.85 s, wanted 1 to 21.8 s"),
        (0, 8_000, "has 0.00 s, wanted 1 to 21.8 s"),
        (800_000, 8_000, "has 100.00 s, wanted 1 to 21.8 s"),
        (20_000, 7_999, "has 7999 Hz, wanted 8000 to 192000"),
        (400_000, 192_001, "has 192001 Hz, wanted 8000 to 192000"),
    ],
)
def test_a_wrong_length_or_rate_is_refused(
    tmp_path: Path, num_samples: int, rate_hz: int, message: str
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.full(num_samples, 0.1), rate_hz)

    with pytest.raises(InvalidRequestError) as caught:
        read_sample(path)

    assert str(caught.value) == f"--from-wav: {path} {message}"


@pytest.mark.parametrize("level", [0.0, 0.0009])
def test_a_silent_sample_is_refused(tmp_path: Path, level: float) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(1.0, level=level), RATE_HZ, subtype="FLOAT")

    with pytest.raises(
        InvalidRequestError, match=r"is silent, wanted speech of more than -60 dBFS"
    ):
        read_sample(path)


def test_a_faint_sample_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(1.0, level=0.002), RATE_HZ, subtype="FLOAT")

    assert len(read_sample(path)) == RATE_HZ


def test_channels_that_cancel_each_other_are_silent(tmp_path: Path) -> None:
    path, audio = tmp_path / "a.wav", speech_like(1.0)
    soundfile.write(path, np.stack([audio, -audio], axis=1), RATE_HZ, subtype="FLOAT")

    with pytest.raises(InvalidRequestError, match="is silent"):
        read_sample(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path, audio = tmp_path / "a.wav", speech_like(1.0)
    audio[500] = value
    soundfile.write(path, audio, RATE_HZ, subtype="FLOAT")

    with pytest.raises(InvalidRequestError, match="holds samples that are not finite"):
        read_sample(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.wav", b""),
        ("a.wav", b"not audio at all"),
        ("a.wav", b"RIFF\x24\x00\x00\x00WAVE"),
        ("a.raw", bytes(100_000)),
        ("a", b"\x00" * 64),
    ],
)
def test_what_is_no_audio_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InvalidRequestError) as caught:
        read_sample(path, "sample")

    assert str(caught.value).startswith(f"sample: {path} is no audio file: ")


def test_a_file_cut_short_counts_as_long_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, speech_like(2.0), RATE_HZ)
    path.write_bytes(path.read_bytes()[:20_000])

    with pytest.raises(InvalidRequestError, match=r"has 0\.42 s, wanted 1 to 21\.8 s"):
        read_sample(path)


def test_too_many_channels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.full((RATE_HZ, 9), 0.1), RATE_HZ)

    with pytest.raises(InvalidRequestError, match=r"has 9 channels, wanted at most 8$"):
        read_sample(path)


@pytest.mark.parametrize("num_bytes", [1_000, 20_000])
def test_a_stream_that_breaks_off_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, noise(3.0), RATE_HZ)
    path.write_bytes(path.read_bytes()[:num_bytes])

    with pytest.raises(InvalidRequestError, match=r"^--from-wav: .*a\.flac (has 0\.|is no audio)"):
        read_sample(path)


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path, is_directory: bool) -> None:
    path = tmp_path / "a.wav"
    if is_directory:
        path.mkdir()

    with pytest.raises(InvalidRequestError, match=r"^--from-wav: .*a\.wav cannot be read: "):
        read_sample(path)


@pytest.mark.parametrize("package", ["soundfile", "scipy.signal"])
def test_without_its_packages_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ModelLoadError, match=r"install chattts-triton\[voices\]$"):
        read_sample(tmp_path / "a.wav")
