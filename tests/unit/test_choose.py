"""Which checkpoint the demo runs on, with a hub on the loopback in place of the real one."""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_hub import (
    BIG,
    SMALL,
    Cut,
    FakeHub,
    Forged,
    Status,
    checkpoint_files,
    hub_for_this_process,
    point_client_at,
)
from huggingface_hub import constants

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.checkpoint import TOKENIZER
from chattts_triton.export.choose import (
    CheckpointChoice,
    choose_checkpoint,
    demo_voice_directory,
)
from training.domain import WORDS
from training.mandarin.domain import CHARACTERS


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_this_process(tmp_path, monkeypatch) as hub:
        yield hub


def write_checkpoint(directory: Path) -> None:
    for name, content in checkpoint_files().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


@dataclass(frozen=True)
class Chooser:
    """`choose_checkpoint` for the files of the hub."""

    hub: FakeHub
    demo_voice: Path

    def __call__(self, timeout_s: float = 10.0, **environment: str) -> CheckpointChoice:
        return choose_checkpoint(
            timeout_s,
            environment=environment,
            expected_sha256=self.hub.sha256,
            demo_voice=self.demo_voice,
        )


@pytest.fixture
def choose(hub: FakeHub, few_words: Path, tmp_path: Path) -> Chooser:
    demo_voice = tmp_path / "demo_voice"
    write_checkpoint(demo_voice)
    shutil.copyfile(few_words, demo_voice / TOKENIZER)
    return Chooser(hub, demo_voice)


def test_a_given_checkpoint_comes_before_everything(
    hub: FakeHub, choose: Chooser, tmp_path: Path
) -> None:
    choose()
    hub.requests.clear()
    given = tmp_path / "given"
    write_checkpoint(given)

    choice = choose(CHATTTS_CHECKPOINT=str(given))

    assert (choice.path, choice.kind) == (given, "given")
    assert "CHATTTS_CHECKPOINT" in choice.note
    assert hub.requests == []


@pytest.mark.parametrize("missing", [SMALL, "asset/Vocos.safetensors"])
def test_a_given_directory_of_another_layout_is_an_error(
    choose: Chooser, tmp_path: Path, missing: str
) -> None:
    given = tmp_path / "given"
    write_checkpoint(given)
    (given / missing).unlink()

    wanted = re.escape(f"CHATTTS_CHECKPOINT: {given / missing}: missing")
    with pytest.raises(ModelLoadError, match=wanted):
        choose(CHATTTS_CHECKPOINT=str(given))


def test_an_empty_variable_counts_as_not_given(choose: Chooser) -> None:
    assert choose(CHATTTS_CHECKPOINT="").kind == "download"


def test_a_hub_that_answers_gives_the_real_weights(hub: FakeHub, choose: Chooser) -> None:
    choice = choose()

    assert choice.kind == "download"
    assert (choice.path / BIG).read_bytes() == hub.files[BIG]
    assert str(choice.path) in choice.note


def test_the_cache_comes_before_the_hub(hub: FakeHub, choose: Chooser) -> None:
    downloaded = choose()
    hub.requests.clear()

    choice = choose()

    assert (choice.path, choice.kind) == (downloaded.path, "cache")
    assert hub.requests == []


def test_an_incomplete_cache_is_completed_by_a_download(hub: FakeHub, choose: Chooser) -> None:
    path = choose().path
    (path / BIG).resolve().unlink()

    choice = choose()

    assert (choice.path, choice.kind) == (path, "download")


def assert_is_demo(choice: CheckpointChoice, choose: Chooser, reason: str) -> None:
    assert choice.kind == "demo"
    assert choice.path == choose.demo_voice
    assert f"cannot be reached ({reason}" in choice.note
    assert "a DEMONSTRATION VOICE of 6 words and 2 Chinese characters" in choice.note
    assert "English and Mandarin of these only, spells every other word" in choice.note
    for way_out in ("chattts-triton fetch", "HF_ENDPOINT", "CHATTTS_CHECKPOINT"):
        assert way_out in choice.note


def test_no_network_gives_the_demonstration_voice(
    choose: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:  # bound and not listening, so nobody else takes the port
        closed.bind(("127.0.0.1", 0))
        point_client_at(f"http://127.0.0.1:{closed.getsockname()[1]}", monkeypatch)

        choice = choose()

    assert_is_demo(choice, choose, "[Errno 111] Connection refused")


def test_offline_mode_gives_the_demonstration_voice(
    hub: FakeHub, choose: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    assert_is_demo(choose(), choose, "offline mode")
    assert hub.requests == []


def test_a_hub_that_does_not_answer_in_time_gives_the_demonstration_voice(
    hub: FakeHub, choose: Chooser
) -> None:
    hub.drips = True

    choice = choose(0.3)

    assert_is_demo(choice, choose, "no answer within 0.3 s")
    hub.released.set()
    asking = [it for it in threading.enumerate() if it.name == "ask-hub"]
    for thread in asking:
        thread.join(10)
    assert not any(it.is_alive() for it in asking)


@pytest.mark.parametrize("status", [403, 407, 451, 500, 503])
def test_a_filter_or_a_gateway_in_place_of_the_hub_gives_the_demonstration_voice(
    hub: FakeHub, choose: Chooser, status: int
) -> None:
    hub.metadata_status[SMALL] = status

    assert_is_demo(choose(), choose, f"HTTP {status}")


def test_something_else_in_place_of_the_hub_gives_the_demonstration_voice(
    hub: FakeHub, choose: Chooser
) -> None:
    hub.commit = None

    assert_is_demo(choose(), choose, "what answers there is no Hugging Face hub")


def test_the_demonstration_voice_that_comes_along_knows_the_words_of_its_domain(
    hub: FakeHub, demo_checkpoint: Path
) -> None:
    hub.metadata_status[SMALL] = 503

    choice = choose_checkpoint(environment={})

    assert choice.path == demo_checkpoint == demo_voice_directory()
    num_words = sum(len(word) > 1 for word in WORDS)  # of one letter are "a" and "i"
    assert num_words >= 250
    assert len(CHARACTERS) >= 200
    assert f"VOICE of {num_words} words and {len(CHARACTERS)} Chinese" in choice.note


def assert_says_how_to_go_on(error: str) -> None:
    assert error.startswith("the Hugging Face hub cannot be reached (HTTP 503), and the demonstra")
    for way_out in ("HF_ENDPOINT", "CHATTTS_CHECKPOINT", "chattts-triton standin"):
        assert way_out in error


@pytest.mark.parametrize("missing", [BIG, TOKENIZER])
def test_a_demonstration_voice_that_is_missing_is_an_error_that_says_how_to_go_on(
    hub: FakeHub, choose: Chooser, missing: str
) -> None:
    hub.metadata_status[SMALL] = 503
    (choose.demo_voice / missing).unlink()

    with pytest.raises(ModelLoadError) as caught:
        choose()

    assert f"{choose.demo_voice / missing}: missing" in str(caught.value)
    assert_says_how_to_go_on(str(caught.value))


def test_a_damaged_tokenizer_of_the_demonstration_voice_is_an_error(
    hub: FakeHub, choose: Chooser
) -> None:
    hub.metadata_status[SMALL] = 503
    (choose.demo_voice / TOKENIZER).write_bytes(b"{")

    with pytest.raises(ModelLoadError, match="not a tokenizer") as caught:
        choose()

    assert_says_how_to_go_on(str(caught.value))


def test_a_checkpoint_that_reads_any_word_is_no_demonstration_voice(
    hub: FakeHub, choose: Chooser, tiny_checkpoint: Path
) -> None:
    hub.metadata_status[SMALL] = 503
    shutil.copyfile(tiny_checkpoint / TOKENIZER, choose.demo_voice / TOKENIZER)

    with pytest.raises(ModelLoadError, match="wanted a closed vocabulary") as caught:
        choose()

    assert_says_how_to_go_on(str(caught.value))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Forged(b"forged" * 4), "broke off"),
        (Forged(checkpoint_files()[SMALL][:-1] + b"]"), "SHA-256 is"),
        (Status(503), "HTTP 503"),
    ],
)
def test_a_download_that_fails_is_an_error_and_no_demonstration(
    hub: FakeHub, choose: Chooser, fault: Forged | Status, error: str
) -> None:
    hub.faults[SMALL] = iter([fault])

    with pytest.raises(ModelLoadError, match=error):
        choose()


def test_a_download_of_which_nothing_more_comes_is_an_error(hub: FakeHub, choose: Chooser) -> None:
    hub.faults[BIG] = iter([Cut(500), Status(404)])

    with pytest.raises(ModelLoadError, match="HTTP 404"):
        choose()


def test_a_hub_that_lacks_the_file_is_an_error_and_no_demonstration(
    hub: FakeHub, choose: Chooser
) -> None:
    del hub.files[SMALL]

    with pytest.raises(ModelLoadError, match=f"{SMALL}: HTTP 404"):
        choose()
