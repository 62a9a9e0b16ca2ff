"""VOICE in each of its forms, and REFINE, through the running server."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from triton_calls import RunningServer, running_server, text_tensors
from tritonclient.utils import InferenceServerException

from chattts_triton.cli.main import main

CAP = 6


def embedding(server: RunningServer, voice: str | None, seed: int = 1) -> bytes:
    options = {} if voice is None else {"VOICE": voice}
    outputs = server.call("preprocess", text_tensors("你好", SEED=seed, **options))
    return outputs["SPEAKER_EMBEDDING"].tobytes()


def test_b_32_a_seed_as_voice_is_the_voice_that_the_seed_draws(server: RunningServer):
    assert embedding(server, "seed:2222") == embedding(server, None, seed=2222)
    assert embedding(server, "seed:2222", seed=7) == embedding(server, "seed:2222", seed=8)


def test_a_voice_of_the_book_is_spoken_by_its_name(server: RunningServer):
    book = json.loads((server.repository / "preprocess" / "voices.json").read_text("utf-8"))
    names = list(book["voices"])

    voices = {embedding(server, name) for name in names}

    assert len(voices) == len(names) > 1
    assert server.speak_one("你好", SEED=1, VOICE=names[0], MAX_NEW_TOKENS=CAP).is_sound()


@pytest.mark.parametrize("voice", ["nobody", "seed:", "seed:-1", "seed:x", "蘁淰", "abc"])
def test_b_48_a_voice_of_no_form_is_refused_by_name(server: RunningServer, voice: str):
    refusal = server.refused("你好", VOICE=voice)

    assert refusal.status == "INVALID_ARGUMENT"
    assert refusal.text.startswith("in ensemble 'chattts', preprocess: VOICE: ")
    server.assert_alive()


def test_b_47_no_text_is_refined_unless_asked(server: RunningServer):
    outputs = server.call("chattts", text_tensors("作为冠军。", SEED=3, MAX_NEW_TOKENS=CAP))

    assert outputs["REFINED_TEXT"][0, 0] == b""
    assert outputs["WARNINGS"][0, 0] == b"[]"


def test_a_refinement_that_strays_is_refused_and_the_text_spoken_as_it_was_sent(
    server: RunningServer,
):
    """Random weights always stray."""
    plain = server.speak_one("你好，世界。", SEED=42, MAX_NEW_TOKENS=CAP)
    tensors = text_tensors("你好，世界。", SEED=42, MAX_NEW_TOKENS=CAP, REFINE=True)

    outputs = server.call("chattts", tensors)

    assert json.loads(outputs["WARNINGS"][0, 0]) == ["refine_refused"]
    assert outputs["REFINED_TEXT"][0, 0] == b""
    assert outputs["AUDIO"][0].tobytes() == plain.audio


def test_only_the_rows_that_ask_are_refined(server: RunningServer):
    outputs = server.call(
        "chattts",
        text_tensors(["你好", "再见"], SEED=[1, 2], MAX_NEW_TOKENS=CAP, REFINE=[False, True]),
    )

    assert [json.loads(row[0]) for row in outputs["WARNINGS"]] == [[], ["refine_refused"]]


def test_tags_that_steer_a_refinement_are_not_spoken(server: RunningServer):
    special = server.manifest.special_ids
    outputs = server.call(
        "preprocess", text_tensors("[oral_2][laugh_0][break_6]你好[uv_break]", REFINE=True)
    )

    assert outputs["SEGMENT_TEXT"][0, 0].decode() == "你好[uv_break]"
    assert special["[break_0]"] + 6 in outputs["REFINE_IDS"][0]
    assert special["[break_0]"] + 6 not in outputs["TEXT_IDS"][0]


def preprocess_with(server: RunningServer, voice: str) -> dict[str, np.ndarray] | None:
    """What `preprocess` makes of a voice; None while the server does not know it."""
    try:
        return server.call("preprocess", text_tensors("你好", VOICE=voice))
    except InferenceServerException:
        return None


def test_voices_and_words_that_the_operator_changes_are_taken_up_without_a_restart(
    tiny_repositories: dict[str, Path], tmp_path: Path
):
    repository = tmp_path / "repository"
    shutil.copytree(tiny_repositories["fp32"], repository, symlinks=True)
    lexicon = repository / "preprocess" / "lexicon.tsv"
    with running_server(repository) as server:

        def text() -> bytes:
            return bytes(
                server.call("preprocess", text_tensors("Triton你好"))["SEGMENT_TEXT"][0, 0]
            )

        before = text()
        lexicon.write_text("Triton\t特里同\n", encoding="utf-8")
        os.utime(lexicon, (0, 0))
        deadline_s = time.monotonic() + 10
        while text() == before:
            assert time.monotonic() < deadline_s

        assert text().decode() == "特里同你好"

        wav = tmp_path / "sample.wav"
        samples = np.sin(np.arange(48_000) / 20) * np.linspace(0.1, 0.5, 48_000)
        soundfile.write(wav, samples, 24_000)
        added = main(
            [
                *("voices", "add", "mine", "--repository", str(repository)),
                *("--from-wav", str(wav), "--text", "你好，世界。"),
            ]
        )
        assert added == 0
        while (outputs := preprocess_with(server, "mine")) is None:
            assert time.monotonic() < deadline_s

        assert outputs["NUM_PROMPT_CODES"].item() == 48_000 // 512 + 1
        assert outputs["PROMPT_TEXT"][0, 0].decode() == "你好，世界。"
        assert server.speak_one("你好", SEED=1, VOICE="mine", MAX_NEW_TOKENS=CAP).is_sound()
