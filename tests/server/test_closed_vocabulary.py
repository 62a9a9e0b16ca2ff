"""A checkpoint that knows few words and brings its own voices, through the running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_calls import RunningServer, running_server, text_tensors

from chattts_client import ChatTTSClient
from chattts_triton.cli.main import main

CAP = 6


@pytest.fixture(scope="module")
def spelling_server(spelling_repository: Path) -> Iterator[RunningServer]:
    with running_server(spelling_repository, "--max-num-seqs=4") as running:
        yield running


@pytest.fixture
def client(spelling_server: RunningServer) -> Iterator[ChatTTSClient]:
    with ChatTTSClient(spelling_server.grpc_url) as client:
        yield client


def test_the_ensemble_warns_of_the_texts_that_have_unknown_words(client: ChatTTSClient):
    texts = ["hello", "hello quetzal", "世界"]

    known, spelled, unknown = client.synthesize_batch(texts, seed=1, max_new_tokens=CAP)

    assert known.warnings == ()
    assert spelled.warnings == unknown.warnings == ("unknown_words",)
    assert len(spelled.samples) == 512 * CAP - 256


def test_a_refinement_that_is_refused_is_told_beside_unknown_words(client: ChatTTSClient):
    """Random weights always stray."""
    audio = client.synthesize("hello quetzal", seed=1, refine=True, max_new_tokens=CAP)

    assert audio.warnings == ("unknown_words", "refine_refused")


@pytest.mark.parametrize(
    ("text", "warnings"), [("hello", ()), ("hello quetzal", ("unknown_words",))]
)
def test_the_last_chunk_of_a_stream_warns_as_well(
    client: ChatTTSClient, text: str, warnings: tuple[str, ...]
):
    *_, last = client.stream(text, seed=1, max_new_tokens=CAP)

    assert last.is_last
    assert last.warnings == warnings


@pytest.mark.parametrize("mode", [(), ("--stream",)])
def test_say_explains_the_warning(
    spelling_server: RunningServer,
    mode: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    out = ["-o", str(tmp_path / "a.wav"), "--url", spelling_server.grpc_url]

    assert main(["say", "hello quetzal", "--max-new-tokens", str(CAP), *mode, *out]) == 0

    warnings = [line for line in capsys.readouterr().err.splitlines() if "does not know" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: the checkpoint does not know every word of the text")


def test_voices_of_the_checkpoint_and_of_the_operator_are_spoken_by_name(
    spelling_server: RunningServer,
):
    def embedding(voice: str) -> list[float]:
        outputs = spelling_server.call("preprocess", text_tensors("hello", SEED=1, VOICE=voice))
        return outputs["SPEAKER_EMBEDDING"][0].tolist()

    assert embedding("up") == [-value for value in embedding("down")]
    assert embedding("alder") == embedding("seed:2222")
    refusal = spelling_server.refused("hello", VOICE="nobody")
    assert "known names: up, down, alder" in refusal.text
