from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase16384
import pytest
from voices_fixtures import FULL_SIZE, HIDDEN_SIZE

from chattts_triton.export.checkpoint import Checkpoint
from chattts_triton.export.dvae_graph import build_dvae_encoder_graph
from chattts_triton.export.graph import save
from chattts_triton.export.upstream import import_upstream, load_spk_stat, load_upstream_chat
from chattts_triton.voices import sample_encoder
from chattts_triton.voices.sample_encoder import SampleEncoder
from chattts_triton.voices.speaker import SpeakerStatistics


@pytest.fixture(scope="session")
def statistics_values() -> npt.NDArray[np.float16]:
    random = np.random.default_rng(0)
    mean = random.normal(0, 1, HIDDEN_SIZE)
    deviation = random.uniform(0.5, 2, HIDDEN_SIZE)
    return np.stack([mean, deviation]).astype(np.float16)


@pytest.fixture(scope="session")
def statistics(
    statistics_values: npt.NDArray[np.float16], tmp_path_factory: pytest.TempPathFactory
) -> SpeakerStatistics:
    path = tmp_path_factory.mktemp("statistics") / "speaker_statistics.npy"
    np.save(path, statistics_values)
    return SpeakerStatistics(path)


@pytest.fixture(scope="session")
def published_statistics(tmp_path_factory: pytest.TempPathFactory) -> SpeakerStatistics:
    """Those of the published weights, from the ChatTTS package."""
    data = pybase16384.decode_from_string(load_spk_stat())
    deviation, mean = np.frombuffer(data, np.float16).reshape(2, FULL_SIZE)
    path = tmp_path_factory.mktemp("published") / "speaker_statistics.npy"
    np.save(path, np.stack([mean, deviation]))
    return SpeakerStatistics(path)


@pytest.fixture(scope="session")
def upstream_speaker_class() -> Any:
    import_upstream()
    from ChatTTS.model.speaker import Speaker

    return Speaker


@pytest.fixture(scope="session")
def encoder_directory(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("encoder")
    model = build_dvae_encoder_graph(Checkpoint.open(tiny_checkpoint))
    save(model, directory / sample_encoder.FILE_NAME)
    return directory


@pytest.fixture(scope="session")
def encoder(encoder_directory: Path) -> SampleEncoder:
    return SampleEncoder(encoder_directory, threads=1)


@pytest.fixture(scope="session")
def upstream_chat(tiny_checkpoint: Path) -> Any:
    return load_upstream_chat(tiny_checkpoint)
