"""`chattts-triton demo`: every stage once, on the smallest stand-in and on the demo voice."""

from __future__ import annotations

import contextlib
import io
import re
import threading
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from fake_hub import SMALL, hub_for_this_process
from tqdm import tqdm

from chattts_triton.cli.demo import DEMONSTRATION_TEXT, progress
from chattts_triton.cli.main import main
from chattts_triton.manifest import load_manifest
from chattts_triton.text.normalizer import TextNormalizer
from training.domain import WORDS

WAIT_S = 20.0


@dataclass(frozen=True)
class Demo:
    """One run of the command, over and done."""

    directory: Path
    code: int
    out: str
    err: str

    @property
    def export_id(self) -> str:
        return load_manifest(self.directory / "repository").export_id


def run_demo(directory: Path, *, out: Path | None = None) -> Demo:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(
            [
                "demo",
                f"--repository={directory / 'repository'}",
                f"--out={out or directory / 'demo.wav'}",
            ]
        )
    return Demo(directory, code, stdout.getvalue(), stderr.getvalue())


@pytest.fixture(scope="module")
def environment(tiny_checkpoint: Path) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATTTS_CHECKPOINT", str(tiny_checkpoint))
        yield patch


@pytest.fixture(scope="module")
def first(environment: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run_demo(tmp_path_factory.mktemp("demo"))


def processes_at(repository: Path) -> list[list[str]]:
    """Command lines of those that name the repository, or work in it as server and stubs do."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.info["cwd"] == str(repository)
        or any(str(repository) in word for word in process.info["cmdline"] or [])
    ]


def last_error(demo: Demo) -> str:
    assert "Traceback" not in demo.err
    return demo.err.splitlines()[-1]


def test_the_demo_writes_a_wav_and_says_what_it_cost(first: Demo) -> None:
    wav = first.directory / "demo.wav"
    with wave.open(str(wav)) as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        duration_s = file.getnframes() / file.getframerate()

    assert first.code == 0
    assert form == (1, 2, 24_000)
    checkpoint, result = first.out.splitlines()
    assert checkpoint.startswith("checkpoint: Using the checkpoint that CHATTTS_CHECKPOINT names")
    assert re.fullmatch(
        rf"{re.escape(str(wav))}: {duration_s:.2f} s of audio in \d+\.\d\d s, RTF \d+\.\d\d, "
        r"seed 42, finish reason (stop|length)",
        result,
    )


def test_every_wait_is_shown(first: Demo) -> None:
    for what in (
        *("choosing the checkpoint", "checking the export", "starting tritonserver"),
        "one gRPC infer call",
    ):
        assert re.search(rf"{what}: \d\d:\d\d", first.err)


def test_the_demo_leaves_no_process(first: Demo) -> None:
    assert first.code == 0
    assert processes_at(first.directory / "repository") == []


def test_a_second_demo_uses_the_export_again(first: Demo) -> None:
    export_id = first.export_id

    second = run_demo(first.directory)

    assert second.code == 0
    assert second.export_id == export_id
    assert "seed 42" in second.out


def test_a_call_that_the_server_refuses_is_one_line(
    first: Demo, environment: pytest.MonkeyPatch
) -> None:
    with environment.context() as patch:
        patch.setenv("CHATTTS_MAX_CHARACTERS", "1")
        refused = run_demo(first.directory)

    assert refused.code == 1
    assert last_error(refused).startswith("chattts-triton demo: ")
    assert last_error(refused).endswith("TEXT: got 6 characters, wanted at most 1")
    assert processes_at(first.directory / "repository") == []


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        (Path(), "it is a directory"),
        (Path("missing/demo.wav"), "no directory"),
        (Path("/proc/demo.wav"), ""),  # nobody may write there, not even root
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    environment: pytest.MonkeyPatch, tmp_path: Path, out: Path, reason: str
) -> None:
    refused = run_demo(tmp_path, out=tmp_path / out)

    assert refused.code == 1
    assert last_error(refused).startswith(f"chattts-triton demo: cannot write {tmp_path / out}: ")
    assert reason in refused.err
    assert refused.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_check_of_the_file_leaves_an_older_one_alone(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "repository").write_text("in the way")
    (tmp_path / "demo.wav").write_bytes(b"older")

    refused = run_demo(tmp_path)

    assert refused.code == 1
    assert "cannot be written" in last_error(refused)
    assert (tmp_path / "demo.wav").read_bytes() == b"older"


def test_without_the_hub_the_demonstration_voice_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CHATTTS_CHECKPOINT", raising=False)
    with hub_for_this_process(tmp_path, monkeypatch) as hub:
        hub.metadata_status[SMALL] = 503
        spoken = run_demo(tmp_path)

    assert [request.file for request in hub.requests] == [SMALL]
    assert spoken.code == 0
    assert re.search(r"choosing the checkpoint: \d\d:\d\d", spoken.err)
    note, result = spoken.out.splitlines()
    assert "DEMONSTRATION VOICE" in note
    assert "chattts-triton fetch" in note
    assert result.endswith("seed 42, finish reason stop")


def test_the_demonstration_text_is_one_of_the_voices_domain() -> None:
    spoken = TextNormalizer({}).normalize(DEMONSTRATION_TEXT).text

    words = re.findall(r"[a-z']+", spoken)

    assert set(words) - set(WORDS) == set()
    assert re.sub(r"[a-z]+", "", spoken).strip(" ,.") == ""


class Screen(io.StringIO):
    """What a terminal shows of all that was written, and a wait for what is to be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def wait_for_another(self, text: str) -> None:
        with self._changed:
            count = self.getvalue().count(text)
            assert self._changed.wait_for(lambda: self.getvalue().count(text) > count, WAIT_S)

    def lines(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for token in re.findall(r"\x1b\[A|.|\n|\r", self.getvalue()):
            if token == "\x1b[A":
                row -= 1
            elif token == "\r":
                column = 0
            elif token == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            else:
                rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + 1 :]
                column += 1
        return [row.rstrip() for row in rows if row.strip()]


def test_the_time_that_runs_and_a_bar_within_it_keep_to_their_own_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr", screen)

    with progress("choosing"):
        with tqdm(total=2, desc="stand-in", bar_format="{desc} {n}/{total} {rate_fmt}") as bar:
            for _ in range(2):
                bar.update()
                bar.refresh()
                screen.wait_for_another("choosing: ")
            both = screen.lines()
        screen.wait_for_another("choosing: ")

    running, bar_line = both
    assert re.fullmatch(r"choosing: \d\d:\d\d", running)
    assert re.fullmatch(r"stand-in 2/2 +\S+/s", bar_line)
    bar_line, running = screen.lines()
    assert re.fullmatch(r"stand-in 2/2 +\S+/s", bar_line)
    assert re.fullmatch(r"choosing: \d\d:\d\d", running)
