"""The spans of a call and of a stream through the real models."""

from __future__ import annotations

import json
from pathlib import Path

from stream_calls import stream
from triton_calls import running_server

# Triton writes them when it ends by itself, and not where unloading takes longer than it waits.
NUM_STARTS = 3


def test_calls_and_streams_are_traced_through_their_members(
    tiny_repositories: dict[str, Path], tmp_path: Path
):
    path = tmp_path / "trace.json"
    settings = ("mode=triton", f"triton,file={path}", "rate=1", "level=TIMESTAMPS")
    arguments = [f"--trace-config={setting}" for setting in settings]
    for _ in range(NUM_STARTS):
        with running_server(tiny_repositories["fp32"], *arguments) as server:
            server.speak_one("你好", SEED=1, MAX_NEW_TOKENS=30)
            stream(server, "你好", SEED=1, MAX_NEW_TOKENS=30, MODE="quality")
        if path.exists():
            break

    entries = [entry for entry in json.loads(path.read_text()) if "model_name" in entry]
    names = {entry["id"]: entry["model_name"] for entry in entries}
    children: dict[str, list[str]] = {}
    for entry in entries:
        if "parent_id" in entry:
            parent = names[entry["parent_id"]]
            children.setdefault(parent, []).append(entry["model_name"])
    assert sorted(children["chattts"]) == ["gpt", "preprocess", "vocos_decoder"]
    assert [entry["model_name"] for entry in entries].count("chattts_stream") >= 1
