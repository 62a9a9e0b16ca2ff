"""`chattts-triton say` against a gRPC server that answers as the model does."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import soundfile
from fake_triton import FakeTriton, fake_pcm16, fake_samples

from chattts_client import ServerUnreachableError
from chattts_triton.cli.main import main
from chattts_triton.cli.say import OPTION_NAMES
from chattts_triton.tensors import OPTIONS

Say = Callable[..., int]


@pytest.fixture
def say(triton: FakeTriton) -> Say:
    return lambda *args: main(["say", *map(str, args), "--url", triton.url])


def run_program(*args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "chattts_triton.cli.main", "say", *args],
        input=data,
        capture_output=True,
        timeout=60,
    )


def test_a_text_becomes_a_wav_file_and_a_sentence(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "hello.wav"

    assert say("你好", "--seed", 42, "-o", path) == 0

    pcm16, sample_rate = soundfile.read(path, dtype="int16")
    assert np.array_equal(pcm16, fake_pcm16(fake_samples("你好", 42)))
    assert sample_rate == 24_000
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: 0.05 s of audio in ")
    assert out.endswith(", seed 42, finish_reason stop\n")
    assert err == ""


def test_json_is_one_object_with_what_was_made(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "hello.wav"

    assert say("0123456789", "--seed", 42, "--max-new-tokens", 5, "--json", "-o", path) == 0

    out, err = capsys.readouterr()
    report = json.loads(out)
    elapsed_s = report.pop("elapsed_s")
    rtf = report.pop("rtf")
    duration_s = (512 * 5 - 256) / 24_000
    assert report == {
        "file": str(path),
        "seed": 42,
        "finish_reason": "length",
        "duration_s": duration_s,
        "sample_rate": 24_000,
        "refined_text": "",
        "warnings": [],
    }
    assert 0 < elapsed_s < 60
    assert rtf == pytest.approx(elapsed_s / duration_s, rel=0.1)
    assert err == ""


def test_audio_that_was_cut_is_warned_of(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert say("0123456789", "--max-new-tokens", 5, "-o", tmp_path / "a.wav") == 0

    assert capsys.readouterr().err.startswith("warning: the audio was cut")


def test_every_option_of_the_model_can_be_given(say: Say, triton: FakeTriton, tmp_path: Path):
    say(
        "a", "-o", tmp_path / "a.wav", "--seed", -1, "--voice", "蘁淰", "--speed", 3,
        "--temperature", 0.25, "--top-p", 0.5, "--top-k", 10, "--repetition-penalty", 1.5,
        "--max-new-tokens", 100, "--no-refine", "--lang", "en", "--timeout-s", 9,
    )  # fmt: skip

    values = {name: tensor[2] for name, tensor in triton.last_inputs.items()}
    assert values == {
        "TEXT": [b"a"],
        "SEED": [-1],
        "VOICE": ["蘁淰".encode()],
        "SPEED": [3],
        "TEMPERATURE": [0.25],
        "TOP_P": [0.5],
        "TOP_K": [10],
        "REPETITION_PENALTY": [1.5],
        "MAX_NEW_TOKENS": [100],
        "REFINE": [False],
        "LANG": [b"en"],
    }
    assert triton.requests[-1].parameters["timeout"].int64_param == 9_000_000
    assert tuple(name.upper() for name in OPTION_NAMES) == tuple(spec.name for spec in OPTIONS)


def test_without_options_only_the_text_is_sent(say: Say, triton: FakeTriton, tmp_path: Path):
    say("a", "-o", tmp_path / "a.wav")

    assert list(triton.last_inputs) == ["TEXT"]


@pytest.mark.parametrize("line_break", [b"", b"\n", b"\r\n"])
def test_standard_input_is_the_text_and_standard_output_the_sound(
    triton: FakeTriton, line_break: bytes
):
    result = run_program(
        "-",
        "-o",
        "-",
        "--seed",
        "7",
        "--json",
        "--url",
        triton.url,
        data="你好😀".encode() + line_break,
    )

    assert result.returncode == 0
    pcm16, _ = soundfile.read(io.BytesIO(result.stdout), dtype="int16")
    assert np.array_equal(pcm16, fake_pcm16(fake_samples("你好😀", 7)))
    assert json.loads(result.stderr)["file"] == "-"


def test_b_66_standard_input_that_is_not_utf8_is_an_error_of_one_line(triton: FakeTriton):
    result = run_program("-", "-o", "-", "--url", triton.url, data=b"ab\xff\xfe\x41")

    assert result.returncode == 1
    assert result.stdout == b""
    assert result.stderr == (
        b"chattts-triton say: standard input: got b'\\xff\\xfeA', wanted UTF-8 at byte 2\n"
    )
    assert triton.requests == []


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "in ensemble 'chattts', preprocess: TEXT: got ''"),
        (grpc.StatusCode.UNAVAILABLE, "in ensemble 'chattts', gpt: the waiting queue is full"),
        (grpc.StatusCode.CANCELLED, "in ensemble 'chattts', gpt: deadline of 1 ms exceeded"),
        (grpc.StatusCode.INTERNAL, "in ensemble 'chattts', gpt: NaN\nin logits"),
    ],
)
def test_an_error_of_the_server_is_one_line_and_leaves_no_file(
    say: Say,
    triton: FakeTriton,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: grpc.StatusCode,
    text: str,
):
    triton.refusal = (status, text)

    assert say("a", "-o", tmp_path / "a.wav") == 1

    assert capsys.readouterr() == ("", f"chattts-triton say: {' '.join(text.split())}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_in_time_is_an_error(
    say: Say, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    triton.hangs = True

    assert say("a", "-o", tmp_path / "a.wav", "--timeout-s", 0.2) == 1

    assert capsys.readouterr().err == (
        f"chattts-triton say: {triton.url}: no answer within 0.2 s\n"
    )


def test_a_server_that_is_not_there_is_an_error_that_names_the_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with FakeTriton() as gone:
        url = gone.url

    assert main(["say", "a", "-o", str(tmp_path / "a.wav"), "--url", url]) == 1

    assert capsys.readouterr().err.startswith(f"chattts-triton say: {url}: failed to connect")
    assert ServerUnreachableError.error_type == "unreachable"


def test_a_missing_client_is_an_error_that_says_how_to_install_it(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "chattts_client", None)

    assert say("a", "-o", tmp_path / "a.wav") == 1

    assert "pip install ./client" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_the_call(
    say: Say, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert say("a", "-o", tmp_path / "missing" / "a.wav") == 1
    assert f"no directory {tmp_path / 'missing'}" in capsys.readouterr().err

    assert say("a", "-o", tmp_path) == 1
    assert "it is a directory" in capsys.readouterr().err

    assert triton.requests == []


def test_a_full_disk_is_an_error_of_one_line(say: Say, capsys: pytest.CaptureFixture[str]):
    assert say("a", "-o", "/dev/full") == 1

    assert capsys.readouterr().err == (
        "chattts-triton say: cannot write /dev/full: No space left on device\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["a"],
        ["-o", "a.wav"],
        ["a", "-o", "a.wav", "--seed", "x"],
        ["a", "-o", "a.wav", "--speed", "1.5"],
        ["a", "-o", "a.wav", "--timeout-s", "0"],
        ["a", "-o", "a.wav", "--timeout-s", "nan"],
        ["a", "-o", "a.wav", "--timeout-s", "soon"],
        ["a", "-o", "a.wav", "--url", "http://127.0.0.1:8001"],
        ["a", "-o", "a.wav", "--url", "127.0.0.1"],
        ["a", "-o", "a.wav", "--url", "127.0.0.1:99999"],
        ["a", "-o", "a.wav", "--volume", "9"],
    ],
)
def test_wrong_use_exits_with_2(args: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["say", *args])

    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: chattts-triton")


def test_help_exits_with_0(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["say", "--help"])

    assert caught.value.code == 0
    assert "--repetition-penalty" in capsys.readouterr().out
