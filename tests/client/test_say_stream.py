"""`chattts-triton say --stream` against a gRPC server that streams as the model does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import grpc
import numpy as np
import pytest
import soundfile
from fake_streams import STEP_SAMPLES, Step, silence
from fake_triton import WAIT_S, FakeTriton, Inputs, fake_pcm16, fake_samples

from chattts_triton.cli.main import main

Say = Callable[..., int]
WAV_HEADER_BYTES = 44
CHUNK_BYTES = 2 * STEP_SAMPLES


@pytest.fixture
def say(triton: FakeTriton) -> Say:
    return lambda *args: main(["say", "--stream", *map(str, args), "--url", triton.url])


@pytest.fixture
def start(triton: FakeTriton) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `say --stream` as a program of its own, its output in pipes."""
    started = []

    def start_program(*args: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-m", "chattts_triton.cli.main", "say", "--stream"]
        process = subprocess.Popen(
            [*program, *args, "--url", triton.url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_program
    for process in started:
        process.kill()
        process.communicate()


def first_chunks_only(inputs: Inputs) -> list[Step]:
    return [silence(0), silence(1), threading.Event()]


def pipe_of(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file


def test_a_stream_becomes_a_wav_file_and_a_sentence(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.WAV"

    assert say("你好", "--seed", 42, "-o", path) == 0

    info = soundfile.info(path)
    pcm16, _ = soundfile.read(path, dtype="int16")
    assert np.array_equal(pcm16, fake_pcm16(fake_samples("你好", 42)))
    assert (info.samplerate, info.channels, info.subtype) == (24_000, 1, "PCM_16")
    assert path.read_bytes().count(b"RIFF") == 1  # B-61
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: 0.05 s of audio in ")
    assert ", first audio after 0." in out
    assert out.endswith(" s, 3 chunks, mode low_latency, seed 42, finish_reason stop\n")
    first, *warnings = err.splitlines()
    assert first.startswith("first audio after 0.")
    assert [line.split(":")[0] for line in warnings] == ["warning"]


def test_json_of_a_stream_tells_when_it_began_and_in_how_many_chunks(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.wav"

    assert say("0123456789", "--max-new-tokens", 5, "--mode", "quality", "--json", "-o", path) == 0

    out, err = capsys.readouterr()
    report = json.loads(out)
    assert 0 < report["ttfa_s"] <= report["elapsed_s"] < 60
    assert (report["num_chunks"], report["mode"]) == (5, "quality")
    assert report["duration_s"] == (512 * 5 - 256) / 24_000
    assert report["rtf"] == pytest.approx(report["elapsed_s"] / report["duration_s"], rel=0.1)
    assert (report["finish_reason"], report["refined_text"]) == ("length", "一个")
    assert report["warnings"] == ["refine_refused"]
    assert err == ""


def test_options_mode_and_priority_are_sent(say: Say, triton: FakeTriton, tmp_path: Path):
    say(
        "a", "-o", tmp_path / "a.pcm", "--mode", "auto", "--speed", 3, "--queue-priority", 2,
        "--timeout-s", 9,
    )  # fmt: skip

    request = triton.requests[-1]
    assert request.model_name == "chattts_stream"
    values = {name: tensor[2] for name, tensor in triton.last_inputs.items()}
    assert values == {"TEXT": [b"a"], "SPEED": [3], "MODE": [b"auto"]}
    assert request.parameters["queue_priority"].int64_param == 2
    assert request.parameters["timeout"].int64_param == 9_000_000


def test_a_call_that_is_no_stream_sends_its_priority_as_well(triton: FakeTriton, tmp_path: Path):
    assert main(
        ["say", "a", "-o", str(tmp_path / "a.wav"), "--queue-priority", "0", "--url", triton.url]
    ) == 0  # fmt: skip

    assert triton.requests[-1].model_name == "chattts"
    assert triton.requests[-1].parameters["queue_priority"].int64_param == 0


def test_a_file_of_another_name_gets_the_samples_alone(say: Say, tmp_path: Path):
    path = tmp_path / "a.pcm"

    assert say("你好", "--seed", 42, "-o", path) == 0

    assert path.read_bytes() == fake_pcm16(fake_samples("你好", 42)).astype("<i2").tobytes()


def test_standard_output_has_each_chunk_before_the_next_one_is_made(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton
):
    made = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), made, silence(1, reason="stop")]

    process = start("a", "-o", "-", "--json")
    first = pipe_of(process.stdout).read(CHUNK_BYTES)
    made.set()
    rest, err = process.communicate(timeout=WAIT_S)

    assert (len(first), len(rest)) == (CHUNK_BYTES, CHUNK_BYTES)
    assert process.returncode == 0
    report = json.loads(err)
    assert (report["file"], report["num_chunks"]) == ("-", 2)


def test_the_first_audio_is_told_of_while_the_stream_goes_on(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton, tmp_path: Path
):
    triton.stream_steps = first_chunks_only

    process = start("a", "-o", str(tmp_path / "a.wav"))

    assert pipe_of(process.stderr).readline().startswith(b"first audio after ")
    assert process.poll() is None


@pytest.mark.parametrize("name", ["fifo", "fifo.wav"])
def test_a_named_pipe_gets_the_samples_alone_as_they_come(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton, tmp_path: Path, name: str
):
    made = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), made, silence(1, reason="stop")]
    fifo = tmp_path / name
    os.mkfifo(fifo)

    process = start("a", "-o", str(fifo))
    with fifo.open("rb", buffering=0) as reader:
        first = reader.read(CHUNK_BYTES)
        made.set()
        rest = reader.readall()

    assert (len(first), len(rest)) == (CHUNK_BYTES, CHUNK_BYTES)
    assert process.wait(WAIT_S) == 0


def wait_for_frames(path: Path, num_frames: int) -> None:
    """Until the file, which is still being written, is a WAV file of so many frames."""
    deadline_s = time.monotonic() + WAIT_S
    never = threading.Event()
    while num_frames_of(path) != num_frames:
        assert time.monotonic() < deadline_s
        never.wait(0.01)


def num_frames_of(path: Path) -> int:
    if not path.exists() or path.stat().st_size < WAV_HEADER_BYTES:
        return 0
    return int(soundfile.info(path).frames)


def test_control_c_cancels_and_leaves_a_whole_wav_file_of_what_came(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton, tmp_path: Path
):
    triton.stream_steps = first_chunks_only
    path = tmp_path / "a.wav"
    process = start("a", "-o", str(path))
    wait_for_frames(path, 2 * STEP_SAMPLES)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)

    assert process.returncode == 130
    assert out == b""
    assert len(err.splitlines()) == 1  # that of the first audio
    assert triton.stream_cancelled.wait(WAIT_S)
    assert soundfile.info(path).frames == 2 * STEP_SAMPLES


def test_a_wav_file_is_whole_after_each_chunk(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton, tmp_path: Path
):
    triton.stream_steps = first_chunks_only
    path = tmp_path / "a.wav"
    process = start("a", "-o", str(path))
    wait_for_frames(path, 2 * STEP_SAMPLES)

    process.kill()
    process.wait(WAIT_S)

    assert soundfile.info(path).frames == 2 * STEP_SAMPLES


def test_a_reader_that_goes_away_ends_the_stream_with_one_line(
    start: Callable[..., subprocess.Popen[bytes]], triton: FakeTriton
):
    gone = threading.Event()

    def steps(inputs: Inputs) -> Iterator[Step]:
        yield silence(0)
        yield gone
        for index in range(1, 10_000):
            yield silence(index)

    triton.stream_steps = steps
    process = start("a", "-o", "-")
    stdout = pipe_of(process.stdout)
    stdout.read(CHUNK_BYTES)
    stdout.close()
    gone.set()
    err = pipe_of(process.stderr).read().decode().splitlines()

    assert process.wait(WAIT_S) == 1
    assert err[1:] == ["chattts-triton say: cannot write -: Broken pipe"]
    assert triton.stream_cancelled.wait(WAIT_S)


def test_an_error_in_the_middle_keeps_what_came_and_says_that_it_is_cut(
    say: Say, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.wav"
    triton.stream_steps = lambda inputs: [
        silence(0),
        silence(1),
        (grpc.StatusCode.INTERNAL, "gpt: NaN\nin logits"),
    ]

    assert say("a", "-o", path) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1:] == [
        f"chattts-triton say: gpt: NaN in logits; {path} is cut after 0.04 s"
    ]
    assert soundfile.info(path).frames == 2 * STEP_SAMPLES


def test_an_error_in_the_middle_of_raw_samples_is_one_line(
    say: Say, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "a.pcm"
    triton.stream_steps = lambda inputs: [
        silence(0),
        (grpc.StatusCode.UNAVAILABLE, "gpt: waiting queue is full"),
    ]

    assert say("a", "-o", path) == 1

    assert capsys.readouterr().err.splitlines()[1:] == [
        "chattts-triton say: gpt: waiting queue is full"
    ]
    assert path.stat().st_size == CHUNK_BYTES


def test_an_error_before_the_first_chunk_leaves_what_was_there(
    say: Say, triton: FakeTriton, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    triton.stream_steps = lambda inputs: [(grpc.StatusCode.UNAVAILABLE, "gone")]
    path = tmp_path / "old.wav"
    path.write_bytes(b"old")

    assert say("a", "-o", path) == 1
    assert say("a", "-o", tmp_path / "new.wav") == 1

    message = f"chattts-triton say: {triton.url}: gone\n"
    assert capsys.readouterr() == ("", 2 * message)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_cancels_the_stream_and_is_one_line(
    say: Say, triton: FakeTriton, capsys: pytest.CaptureFixture[str]
):
    triton.stream_steps = first_chunks_only

    assert say("a", "-o", "/dev/full") == 1

    assert capsys.readouterr().err.splitlines()[1:] == [
        "chattts-triton say: cannot write /dev/full: No space left on device"
    ]
    assert triton.stream_cancelled.wait(WAIT_S)


@pytest.mark.parametrize(
    "args",
    [
        ["a", "-o", "a.wav", "--mode", "quality"],
        ["a", "-o", "a.wav", "--stream", "--mode", "fast"],
        ["a", "-o", "a.wav", "--queue-priority", "soon"],
        ["a", "--stream"],
    ],
)
def test_wrong_use_of_a_stream_exits_with_2(args: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["say", *args])

    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: chattts-triton")
