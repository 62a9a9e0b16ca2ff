from pathlib import Path
from typing import Any

import mel_reference
import numpy as np
import numpy.typing as npt
import pytest
import torch
from voices_fixtures import RATE_HZ, speech_like

from chattts_triton.config import MAX_PROMPT_CODES
from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.export.dvae_graph import build_dvae_encoder_graph
from chattts_triton.manifest import Dims
from chattts_triton.ort import make_session
from chattts_triton.voices.prompt_codes import MAX_SAMPLE_S, encode_prompt_codes
from chattts_triton.voices.sample_encoder import FILE_NAME, SampleEncoder, magnitudes


def noise(num_samples: int, level: float) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(num_samples)
    return (level * random.standard_normal(num_samples)).astype(np.float32)


SIGNALS = {
    "speech": speech_like(1.0),
    "speech of odd length": speech_like(2.3)[:-77],
    "long speech": speech_like(12.0),
    "loud noise": noise(30_001, 0.5),
    "faint noise": noise(30_001, 0.002),
    "speech with silence": np.concatenate([np.zeros(24_000, np.float32), speech_like(1.0)]),
}


@pytest.mark.parametrize("audio", SIGNALS.values(), ids=SIGNALS)
def test_the_codes_of_a_sample_are_upstreams(
    encoder: SampleEncoder, upstream_chat: Any, audio: npt.NDArray[np.float32]
) -> None:
    codes = encoder.encode(audio)

    wanted = upstream_chat.dvae.sample_audio(audio).numpy().T
    assert codes.shape == ((len(audio) // 256 + 1) // 2, 4)
    assert codes.dtype == np.int32
    assert np.array_equal(codes, wanted)  # no code may differ
    assert encode_prompt_codes(codes) == upstream_chat.sample_audio_speaker(audio)


def test_the_longest_sample_fills_a_prompt(encoder: SampleEncoder) -> None:
    codes = encoder.encode(speech_like(MAX_SAMPLE_S))

    assert codes.shape == (MAX_PROMPT_CODES, 4)


def test_codes_depend_on_what_is_said_in_every_codebook(encoder: SampleEncoder) -> None:
    codes = encoder.encode(speech_like(5.0))

    assert min(len(np.unique(codes[:, book])) for book in range(4)) > 1


@pytest.fixture(scope="module")
def graph_mel(encoder_directory: Path) -> npt.NDArray[np.float32]:
    """(100, F) as the graph makes it of our spectrum."""
    session = make_session(encoder_directory / FILE_NAME, threads=1)
    spectrum = magnitudes(mel_reference.fixed_signal())
    (mel,) = session.run(["mel"], {"magnitudes": spectrum[None]})
    return mel[0]


def test_the_mel_spectrum_is_that_of_the_formula(graph_mel: npt.NDArray[np.float32]) -> None:
    wanted = np.load(mel_reference.FILE)

    assert graph_mel.shape == wanted.shape == (100, 24)
    assert np.abs(graph_mel - wanted).max() <= 1e-4


def test_the_mel_spectrum_is_upstreams(
    graph_mel: npt.NDArray[np.float32], upstream_chat: Any
) -> None:
    audio = torch.from_numpy(mel_reference.fixed_signal())

    wanted = upstream_chat.dvae.preprocessor_mel(audio).numpy()

    assert np.abs(graph_mel - wanted).max() <= 1e-4


def test_the_reference_array_is_what_its_script_makes() -> None:
    made = mel_reference.log_mel(mel_reference.fixed_signal())

    assert np.abs(made - np.load(mel_reference.FILE)).max() <= 1e-5  # it is kept in float32


@pytest.mark.parametrize("num_samples", [RATE_HZ, RATE_HZ + 1, RATE_HZ + 255, RATE_HZ + 256])
def test_the_spectrum_is_that_of_torch(num_samples: int) -> None:
    audio = noise(num_samples, 0.1)

    spectrum = magnitudes(audio)

    wanted = torch.stft(
        torch.from_numpy(audio), 1024, 256, window=torch.hann_window(1024), return_complex=True
    ).abs()
    assert spectrum.shape == (513, num_samples // 256 + 1)
    assert np.abs(spectrum - wanted.numpy()).max() <= 1e-4


def test_a_missing_graph_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=rf"{FILE_NAME}: cannot be loaded"):
        SampleEncoder(tmp_path, threads=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_audio_tokens": 625}, "4 dimensions of a quantizer do not make up 624 codes"),
        ({"num_audio_tokens": 2}, "4 dimensions of a quantizer do not make up 1 codes"),
        ({"num_vq": 3}, "2 groups of quantizers do not divide 3 codebooks and 128 channels"),
    ],
)
def test_a_quantizer_that_does_not_fit_the_codes_is_a_load_error(
    tiny_checkpoint: Path, change: dict[str, int], message: str
) -> None:
    dims = Checkpoint.open(tiny_checkpoint).dims
    changed = Checkpoint(tiny_checkpoint, Dims(**(vars(dims) | change)))

    with pytest.raises(ModelLoadError, match=rf"DVAE\.safetensors: {message}"):
        build_dvae_encoder_graph(changed)
