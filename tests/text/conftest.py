from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from text_fixtures import SPECIAL_TOKENS, build_tokenizer, write_preprocess_files
from tokenizers import Tokenizer

from chattts_triton.export.upstream import homophones_map
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.text.normalizer import TextNormalizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="session")
def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}


@pytest.fixture(scope="session")
def preprocess_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("preprocess")
    write_preprocess_files(directory)
    return directory


@pytest.fixture(scope="session")
def statistics(preprocess_directory: Path) -> npt.NDArray[np.float16]:
    return np.load(preprocess_directory / "speaker_statistics.npy")


@pytest.fixture(scope="session")
def preprocess(preprocess_directory: Path, special_ids: dict[str, int]) -> PreprocessModel:
    return PreprocessModel(preprocess_directory, special_ids)


@pytest.fixture(scope="session")
def normalizer() -> TextNormalizer:
    return TextNormalizer(homophones_map())
