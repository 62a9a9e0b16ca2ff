"""`chattts-triton bench` against the real tritonserver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from triton_calls import RunningServer

from chattts_triton.cli.main import main
from chattts_triton.load.texts import TEXTS

NUM_CODES = 40


def bench(server: RunningServer, path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = ["bench", f"--url={server.grpc_url}", f"--json={path}", *arguments]
    status = main([*command, f"--max-new-tokens={NUM_CODES}", "--timeout-s=60"])
    return status, json.loads(path.read_text(encoding="utf-8"))


def test_the_shipped_texts_are_spoken_by_calls(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--concurrency=4", f"--requests={len(TEXTS)}"]

    status, report = bench(server, tmp_path / "bench.json", *arguments)

    assert status == 0
    assert report["num_answered"] == len(TEXTS)
    assert report["num_failed"] == report["num_refused"] == 0
    assert report["audio_s"] == pytest.approx(sum(take["audio_s"] for take in report["takes"]))
    assert "answered  12\n" in capsys.readouterr().out


def test_the_same_seed_and_texts_give_the_same_audio_lengths_again(
    server: RunningServer, tmp_path: Path
):
    lengths = []
    for arguments in (["--concurrency=1"], ["--concurrency=3"], ["--rate=20", "--stream"]):
        status, report = bench(
            server, tmp_path / "bench.json", "--requests=6", "--seed=5", *arguments
        )
        assert status == 0
        lengths.append([take["audio_s"] for take in report["takes"]])

    assert lengths[0] == lengths[1] == lengths[2]


def test_streams_have_chunks_and_their_mode(server: RunningServer, tmp_path: Path):
    arguments = ["--stream", "--mode=low_latency", "--concurrency=2", "--requests=4"]

    status, report = bench(server, tmp_path / "bench.json", *arguments)

    assert status == 0
    assert report["modes"] == {"low_latency": 4}
    for take in report["takes"]:
        samples = sum(chunk["samples"] for chunk in take["chunks"])
        assert samples / 24_000 == pytest.approx(take["audio_s"])
        assert 0 < take["ttfa_s"] <= take["latency_s"]
    assert report["num_cut"] == sum(take["finish_reason"] == "length" for take in report["takes"])


def test_a_full_server_refuses_and_nothing_has_failed(
    one_slot_server: RunningServer, tmp_path: Path
):
    arguments = ["--concurrency=4", "--requests=12", "--warmup=1"]

    status, report = bench(one_slot_server, tmp_path / "bench.json", *arguments)

    assert status == 0
    assert report["num_refused"] > 0
    assert report["num_answered"] + report["num_refused"] == 12
    one_slot_server.assert_alive()


def test_more_streams_than_there_are_slots_are_beyond_the_capacity(
    one_slot_server: RunningServer, tmp_path: Path
):
    """Where nobody may wait, the second stream is refused, however fast the server is."""
    texts = tmp_path / "texts.txt"
    texts.write_text("你好。\n", encoding="utf-8")
    arguments = ["--find-capacity", "--mode=quality", "--requests=1", f"--texts={texts}"]

    status, report = bench(one_slot_server, tmp_path / "bench.json", *arguments)

    assert status == 0
    assert report["capacity"] in (0, 1)
    last = max(report["levels"], key=lambda level: level["concurrency"])
    assert last["num_refused"] + last["underruns"]["count"] > 0


def test_a_refused_option_ends_it_in_the_warm_up(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    status = main(["bench", f"--url={server.grpc_url}", "--voice=nobody", "--requests=100"])

    err = capsys.readouterr().err
    assert status == 1
    assert err.startswith("chattts-triton bench: warm-up: invalid_request: ")
    assert "VOICE" in err
