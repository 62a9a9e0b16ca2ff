"""A repository whose models are warmed up in hard ways, and whose decoder fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_calls import RunningServer, running_server, text_tensors

WARM_UP_TEXT = "the accused’s spouse"
WARM_UP = """
model_warmup [
  {
    name: "zeros" batch_size: 2 count: 2
    inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } }
  },
  {
    name: "apostrophe" batch_size: 1
    inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text" } }
  }
]
"""
FAILING_DECODER = """

class FailingMember(VocosDecoderMember):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._model = self

    def run(self, inputs):
        from chattts_triton.errors import GenerationError
        raise GenerationError("the weights are gone")
"""


def serialized(text: str) -> bytes:
    """A text as Triton reads it from a file: its length in bytes, then its UTF-8."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def rewrite(path: Path, text: str) -> None:
    path.unlink()  # a hard link to the repository of the other tests
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def faulty_server(
    tiny_repositories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("faulty") / "model_repository"
    shutil.copytree(tiny_repositories["fp32"], repository, symlinks=True, copy_function=os.link)
    config = repository / "preprocess" / "config.pbtxt"
    rewrite(config, config.read_text(encoding="utf-8") + WARM_UP)
    (repository / "preprocess" / "warmup").mkdir()
    (repository / "preprocess" / "warmup" / "text").write_bytes(serialized(WARM_UP_TEXT))
    model = repository / "vocos_decoder" / "1" / "model.py"
    code = model.read_text(encoding="utf-8")
    assert code.count("VocosDecoderMember(") == 1
    rewrite(model, code.replace("VocosDecoderMember(", "FailingMember(") + FAILING_DECODER)
    with running_server(repository, "--max-num-seqs=2") as server:
        yield server


def test_b_69_a_warm_up_text_with_a_curly_apostrophe_is_counted_in_bytes(
    faulty_server: RunningServer,
):
    data = serialized(WARM_UP_TEXT)

    assert int.from_bytes(data[:4], "little") == len(data) - 4 == len(WARM_UP_TEXT) + 2
    assert faulty_server.client.is_model_ready("preprocess")
    outputs = faulty_server.call("preprocess", text_tensors(WARM_UP_TEXT, SEED=1))
    assert outputs["NUM_TEXT_IDS"][0, 0] > 4


def test_b_70_a_warm_up_with_zero_data_leaves_the_server_ready_and_empty_texts_refused(
    faulty_server: RunningServer,
):
    assert faulty_server.client.is_model_ready("chattts")

    refusal = faulty_server.refused("")

    assert refusal.status == "INVALID_ARGUMENT"
    assert "preprocess: TEXT: got ''" in refusal.text


def test_b_101_an_error_in_the_decoder_begins_with_its_name(faulty_server: RunningServer):
    refusal = faulty_server.refused("你好", MAX_NEW_TOKENS=1)

    assert refusal.status == "INTERNAL"
    assert refusal.text == "in ensemble 'chattts', vocos_decoder: the weights are gone"
    assert faulty_server.refused("你好", MAX_NEW_TOKENS=1) == refusal
