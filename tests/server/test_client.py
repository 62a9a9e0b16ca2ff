"""The client, its examples and `say` against the real tritonserver."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from chattts_client import (
    AsyncChatTTSClient,
    Audio,
    ChatTTSClient,
    DeadlineExceededError,
    InvalidRequestError,
)
from chattts_triton.cli.main import main
from chattts_triton.constants import num_audio_samples

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"
TEXTS = ["早上好。", "今天天气很好，我们去公园走走吧。", "Good night."]
CAP = 24  # steps; keeps the noise of random weights short


@pytest.fixture
def client(server: Any) -> Any:
    with ChatTTSClient(server.grpc_url, timeout_s=120) as connected:
        yield connected


def test_the_server_is_ready(client: ChatTTSClient):
    assert client.is_ready() is True


def test_b_30_the_same_seed_gives_the_same_samples(client: ChatTTSClient):
    first = client.synthesize("你好，世界。", seed=42, max_new_tokens=CAP)
    again = client.synthesize("你好，世界。", seed=42, max_new_tokens=CAP)
    other = client.synthesize("你好，世界。", seed=43, max_new_tokens=CAP)

    assert (first.seed, other.seed) == (42, 43)
    assert np.array_equal(first.samples, again.samples)
    assert not np.array_equal(first.samples, other.samples)


def test_a_drawn_seed_gives_the_same_samples_again(client: ChatTTSClient):
    drawn = client.synthesize("你好", max_new_tokens=CAP)
    again = client.synthesize("你好", seed=drawn.seed, max_new_tokens=CAP)

    assert np.array_equal(drawn.samples, again.samples)


def test_b_59_the_audio_is_one_row_of_whole_steps_in_both_forms(client: ChatTTSClient):
    audio = client.synthesize("你好，世界。", seed=42, max_new_tokens=CAP)

    assert audio.samples.dtype == np.float32
    assert len(audio.samples) in {num_audio_samples(steps) for steps in range(1, CAP + 1)}
    assert float(np.abs(audio.samples).max()) <= 1.0
    assert audio.pcm16 is not None
    assert audio.pcm16 == pytest.approx(audio.samples * 32767, abs=2.0)


def test_audio_at_the_limit_of_steps_says_so(client: ChatTTSClient):
    audio = client.synthesize("今天天气很好，我们去公园走走吧。", seed=1, max_new_tokens=2)

    assert audio.finish_reason == "length"
    assert len(audio.samples) == num_audio_samples(2)


def test_b_60_a_batch_equals_single_calls_in_order(client: ChatTTSClient):
    batch = client.synthesize_batch(TEXTS, seed=[1, 2, 3], max_new_tokens=[CAP, 5, CAP])
    single = [
        client.synthesize(text, seed=seed, max_new_tokens=cap)
        for text, seed, cap in zip(TEXTS, [1, 2, 3], [CAP, 5, CAP], strict=True)
    ]

    assert [audio.seed for audio in batch] == [1, 2, 3]
    for together, alone in zip(batch, single, strict=True):
        assert np.array_equal(together.samples, alone.samples)
        assert together.finish_reason == alone.finish_reason


def test_asyncio_gives_what_the_blocking_client_gives(server: Any, client: ChatTTSClient):
    async def synthesize_all() -> list[Audio]:
        async with AsyncChatTTSClient(server.grpc_url, timeout_s=120) as async_client:
            assert await async_client.is_ready() is True
            calls = (async_client.synthesize(text, seed=7, max_new_tokens=CAP) for text in TEXTS)
            return await asyncio.gather(*calls)

    side_by_side = asyncio.run(synthesize_all())

    expected = client.synthesize_batch(TEXTS, seed=7, max_new_tokens=CAP)
    for audio, other in zip(side_by_side, expected, strict=True):
        assert np.array_equal(audio.samples, other.samples)


@pytest.mark.parametrize(
    "options",
    [
        {"speed": 0},
        {"temperature": 1.0},
        {"top_p": 0.1},
        {"top_k": 3},
        {"repetition_penalty": 5.0},
    ],
)
def test_b_77_an_option_at_its_default_changes_nothing_and_at_another_value_something(
    client: ChatTTSClient, options: dict[str, Any]
):
    defaults: dict[str, Any] = {
        "speed": 5,
        "temperature": 0.3,
        "top_p": 0.7,
        "top_k": 20,
        "repetition_penalty": 1.05,
    }
    [name] = options
    plain = client.synthesize("你好，世界。", seed=3, max_new_tokens=CAP)
    default = client.synthesize(
        "你好，世界。", seed=3, max_new_tokens=CAP, **{name: defaults[name]}
    )
    changed = client.synthesize("你好，世界。", seed=3, max_new_tokens=CAP, **options)

    assert np.array_equal(plain.samples, default.samples)
    assert not np.array_equal(plain.samples, changed.samples)


@pytest.mark.parametrize(
    ("text", "options", "field"),
    [
        ("", {}, "TEXT"),
        ("!!!", {}, "TEXT"),
        ("你好", {"seed": -2}, "SEED"),
        ("你好", {"speed": 10}, "SPEED"),
        ("你好", {"temperature": 0.0}, "TEMPERATURE"),
        ("你好", {"top_p": 1.5}, "TOP_P"),
        ("你好", {"top_k": 0}, "TOP_K"),
        ("你好", {"repetition_penalty": 0.0}, "REPETITION_PENALTY"),
        ("你好", {"max_new_tokens": 0}, "MAX_NEW_TOKENS"),
        ("你好", {"voice": "abc"}, "VOICE"),
    ],
)
def test_a_wrong_request_is_refused_by_name_and_the_next_one_succeeds(
    client: ChatTTSClient, text: str, options: dict[str, Any], field: str
):
    with pytest.raises(InvalidRequestError) as caught:
        client.synthesize(text, **options)

    assert str(caught.value).startswith(f"in ensemble 'chattts', preprocess: {field}: got ")
    assert len(client.synthesize("你好", seed=1, max_new_tokens=2).samples) > 0


def test_one_bad_text_fails_its_whole_call(client: ChatTTSClient):
    with pytest.raises(InvalidRequestError, match="TEXT"):
        client.synthesize_batch(["你好", "", "再见"])


def test_more_texts_than_the_model_takes_are_refused(client: ChatTTSClient):
    with pytest.raises(InvalidRequestError, match="64"):
        client.synthesize_batch(["你好"] * 65, max_new_tokens=1)


def test_a_call_ends_at_its_timeout_and_the_server_lives(client: ChatTTSClient):
    with pytest.raises(DeadlineExceededError):
        client.synthesize("很长的一段话。" * 60, seed=1, timeout_s=0.02)

    assert len(client.synthesize("你好", seed=1, max_new_tokens=2).samples) > 0


@pytest.mark.parametrize(
    ("example", "files"),
    [
        ("grpc_plain.py", ["hello.wav"]),
        ("synthesize.py", ["hello.wav"]),
        ("asyncio_batch.py", [f"{kind}_{n}.wav" for kind in ("gather", "batch") for n in range(3)]),
        ("http_curl.sh", ["infer.wav", "generate.wav"]),
    ],
)
def test_an_example_writes_its_files(server: Any, tmp_path: Path, example: str, files: list[str]):
    program = ["bash"] if example.endswith(".sh") else [sys.executable]
    url = server.http_url if example.endswith(".sh") else server.grpc_url

    subprocess.run(
        [*program, str(EXAMPLES / example), url],
        cwd=tmp_path,
        check=True,
        timeout=300,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    for name in files:
        info = soundfile.info(tmp_path / name)
        assert (info.samplerate, info.channels, info.subtype) == (24_000, 1, "PCM_16")
        assert info.frames > 0


def test_http_and_grpc_give_the_same_bytes(server: Any, client: ChatTTSClient, tmp_path: Path):
    """The three forms of the protocol are asked for the same text and seed."""
    script = str(EXAMPLES / "http_curl.sh")
    subprocess.run(["bash", script, server.http_url, str(tmp_path)], check=True, timeout=300)

    client.synthesize("你好，世界。", seed=42).write(tmp_path / "grpc.wav")

    expected, _ = soundfile.read(tmp_path / "grpc.wav", dtype="int16")
    for name in ("infer.wav", "generate.wav"):
        pcm16, _ = soundfile.read(tmp_path / name, dtype="int16")
        assert np.array_equal(pcm16, expected)


def test_say_writes_a_file_and_reports_it(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "hello.wav"
    args = ["say", "你好", "--url", server.grpc_url, "--seed", "42", "--max-new-tokens", "4"]

    assert main([*args, "--json", "-o", str(path)]) == 0

    report = json.loads(capsys.readouterr().out)
    info = soundfile.info(path)
    assert (report["file"], report["seed"]) == (str(path), 42)
    assert report["duration_s"] == pytest.approx(info.duration, abs=1e-4)


def test_say_passes_on_the_servers_refusal(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.wav"

    assert main(["say", "", "--url", server.grpc_url, "-o", str(path)]) == 1

    err = capsys.readouterr().err
    assert err.startswith("chattts-triton say: in ensemble 'chattts', preprocess: TEXT: got ''")
    assert err.count("\n") == 1
    assert not path.exists()
