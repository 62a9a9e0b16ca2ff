"""`fetch` against a hub on the loopback; in a process of its own where the environment matters."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_hub import (
    BIG,
    COMMIT,
    SMALL,
    Cut,
    FakeHub,
    Forged,
    Stalled,
    Status,
    checkpoint_files,
    hub_for_this_process,
    point_client_at,
    safetensors,
)
from huggingface_hub import constants

from chattts_triton.errors import ModelLoadError
from chattts_triton.export.fetch import cached_checkpoint, fetch

ROOT = Path(__file__).parents[2]
PIECE = 10 << 20  # bytes that the hub's client writes at a time
LONG = safetensors(PIECE + (2 << 20), b"g")
FILES = checkpoint_files()
DRIVER = """
import json, sys
from chattts_triton.errors import ModelLoadError
from chattts_triton.export.fetch import fetch

try:
    print(fetch(expected_sha256=json.loads(sys.argv[1])))
except ModelLoadError as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class User:
    """Somebody with a home directory that holds the hub's cache."""

    home: Path
    hub: FakeHub

    @property
    def repository(self) -> Path:
        return self.home / "hub" / "models--2Noise--ChatTTS"

    def blob(self, name: str) -> Path:
        return self.repository / "blobs" / self.hub.sha256[name]

    def fetch(self, out: Path | None = None, timeout_s: float | None = None) -> Path:
        return fetch(out, timeout_s, self.hub.sha256)

    def fetch_and_fail(self, out: Path | None = None, timeout_s: float | None = None) -> str:
        with pytest.raises(ModelLoadError) as failure:
            self.fetch(out, timeout_s)
        return str(failure.value)

    def cached(self) -> Path | None:
        return cached_checkpoint(self.hub.sha256)

    def fetch_with(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Fetch in a process of its own: the library reads its environment when it is imported."""
        return self.run("-c", DRIVER, json.dumps(self.hub.sha256), **environment)

    def run(
        self, *arguments: str, cwd: Path = ROOT, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        # Nothing else of this process's environment is handed on, so no proxy either.
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": self.hub.url,
        }
        return subprocess.run(
            [sys.executable, *arguments],
            env=own | environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_this_process(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture
def user(tmp_path: Path, hub: FakeHub) -> User:
    return User(tmp_path, hub)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def wait_for_the_asking_threads() -> None:
    asking = [it for it in threading.enumerate() if it.name == "ask-hub"]
    for thread in asking:
        thread.join(10)
    assert not any(it.is_alive() for it in asking)


def forged(name: str) -> bytes:
    return FILES[name][:-1] + b"!"


def test_all_files_arrive_in_the_cache_as_one_snapshot(hub: FakeHub, user: User) -> None:
    path = user.fetch()

    assert path == user.repository / "snapshots" / COMMIT
    assert contents(path) == FILES
    assert user.cached() == path
    assert not [it.path for it in hub.requests if "xet" in it.path]
    assert not list(user.home.rglob("*.incomplete"))


def test_a_second_run_asks_the_hub_for_nothing(hub: FakeHub, user: User) -> None:
    first = user.fetch()
    hub.requests.clear()

    second = user.fetch()

    assert second == first
    assert hub.requests == []


def test_out_holds_the_files_and_nothing_else(user: User, tmp_path: Path) -> None:
    out = tmp_path / "weights"

    path = user.fetch(out)

    assert path == out
    assert contents(out) == FILES
    assert not user.repository.exists()


def test_out_takes_from_the_cache_what_is_right_there(hub: FakeHub, user: User) -> None:
    user.fetch()
    user.blob(BIG).write_bytes(forged(BIG))
    hub.requests.clear()

    path = user.fetch(user.home / "weights")

    assert contents(path) == FILES
    assert {it.file for it in hub.file_requests()} == {BIG}


def test_out_is_completed_without_loading_again_what_is_right(hub: FakeHub, user: User) -> None:
    out = user.home / "weights"
    user.fetch(out)
    (out / SMALL).write_bytes(b"{}")
    hub.requests.clear()

    path = user.fetch(out)

    assert contents(path) == FILES
    assert {it.file for it in hub.file_requests()} == {SMALL}


def test_a_cut_within_a_run_is_resumed_by_a_range_request(hub: FakeHub, user: User) -> None:
    hub.put(BIG, LONG)
    hub.faults[BIG] = iter([Cut(PIECE + 1000)])

    path = user.fetch()

    assert contents(path) == hub.files
    assert hub.ranges(BIG) == [None, f"bytes={PIECE}-"]


@pytest.mark.parametrize("to_directory", [False, True])
def test_a_later_run_resumes_where_the_former_stopped(
    hub: FakeHub, user: User, to_directory: bool
) -> None:
    out = user.home / "weights" if to_directory else None
    hub.put(BIG, LONG)
    hub.faults[BIG] = iter([Cut(PIECE + 1000), Status(503)])
    failed = user.fetch_and_fail(out)
    hub.requests.clear()

    path = user.fetch(out)

    assert "HTTP 503" in failed
    assert contents(path) == hub.files
    assert hub.ranges(BIG) == [f"bytes={PIECE}-"]
    assert not list(user.home.rglob("*.incomplete"))


def test_a_hub_without_ranges_sends_the_file_anew(hub: FakeHub, user: User) -> None:
    hub.put(BIG, LONG)
    hub.faults[BIG] = iter([Cut(PIECE + 1000)])
    hub.serves_ranges = False

    assert contents(user.fetch()) == hub.files


def test_a_partial_file_longer_than_the_file_is_dropped(hub: FakeHub, user: User) -> None:
    partial = user.blob(BIG).with_suffix(".incomplete")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(FILES[BIG] + b"more")

    assert contents(user.fetch()) == FILES
    assert hub.ranges(BIG) == [None]


def test_a_file_that_is_always_cut_short_is_one_clear_error(hub: FakeHub, user: User) -> None:
    hub.put(BIG, LONG)
    hub.faults[BIG] = itertools.repeat(Cut(PIECE + 1000))

    error = user.fetch_and_fail()

    assert f"{BIG}: the download broke off, {PIECE} of {len(LONG)} bytes" in error
    assert "run the command again" in error
    assert user.cached() is None


def test_a_body_of_the_wrong_length_is_one_clear_error(hub: FakeHub, user: User) -> None:
    hub.faults[BIG] = iter([Forged(FILES[BIG][:-7])])

    error = user.fetch_and_fail()

    assert f"{BIG}: the download broke off, {len(FILES[BIG]) - 7} of" in error
    assert contents(user.fetch()) == FILES


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_a_wrong_hash_is_an_error_and_healed_by_the_next_run(
    hub: FakeHub, user: User, name: str
) -> None:
    hub.faults[name] = iter([Forged(forged(name))])

    failed = user.fetch_and_fail()
    left = [path for path in user.repository.rglob("*") if path.is_file()]
    path = user.fetch()

    got = hashlib.sha256(forged(name)).hexdigest()
    assert failed.startswith(f"{name}: SHA-256 is {got}, wanted {hub.sha256[name]}")
    assert forged(name) not in [path.read_bytes() for path in left]
    assert contents(path) == FILES


@pytest.mark.parametrize("name", [BIG, SMALL])
def test_a_file_that_went_bad_in_the_cache_is_loaded_again(
    hub: FakeHub, user: User, name: str
) -> None:
    path = user.fetch()
    (path / name).resolve().write_bytes(forged(name))
    hub.requests.clear()

    assert contents(user.fetch()) == FILES
    assert [it.file for it in hub.file_requests() if it.method == "GET"].count(name) == 1
    assert hub.ranges("asset/Vocos.safetensors") == []


def test_a_cache_without_symbolic_links_is_verified_and_healed_too(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    path = user.fetch()
    (path / BIG).write_bytes(forged(BIG))

    assert contents(user.fetch()) == FILES
    assert not (path / BIG).is_symlink()


def test_a_stale_copy_under_another_commit_is_removed(hub: FakeHub, user: User) -> None:
    path = user.repository / "snapshots" / COMMIT / SMALL  # no branch names this commit yet
    path.parent.mkdir(parents=True)
    path.write_bytes(forged(SMALL))

    failed = user.fetch_and_fail()

    assert f"{SMALL}: SHA-256 is" in failed
    assert contents(user.fetch()) == FILES


@pytest.mark.parametrize("damage", ["cut", "renamed", "missing", "small"])
def test_a_damaged_cache_is_no_cached_checkpoint(user: User, damage: str) -> None:
    path = user.fetch()
    if damage == "cut":
        os.truncate(user.blob(BIG), len(FILES[BIG]) - 1)
    elif damage == "renamed":
        user.blob(BIG).rename(user.blob(BIG).with_name("0" * 64))
        (path / BIG).unlink()
        (path / BIG).symlink_to(user.blob(BIG).with_name("0" * 64))
    elif damage == "missing":
        (path / BIG).unlink()
    else:
        (path / SMALL).resolve().write_bytes(forged(SMALL))

    assert user.cached() is None


def test_a_missing_file_is_a_404_with_its_name(hub: FakeHub, user: User) -> None:
    del hub.files[SMALL]

    error = user.fetch_and_fail()

    assert f"{hub.url}/2Noise/ChatTTS/resolve/main/{SMALL}: HTTP 404" in error
    assert "HF_ENDPOINT" in error


def test_no_network_says_how_to_go_on(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound and not listening, so nobody else takes the port
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        point_client_at(f"http://127.0.0.1:{port}", monkeypatch)
        error = user.fetch_and_fail()

    assert f"hub http://127.0.0.1:{port} cannot be reached" in error
    assert "refused" in error
    assert "set HF_ENDPOINT" in error
    assert "CHATTTS_CHECKPOINT" in error
    assert "stand-in" in error


@pytest.mark.parametrize(
    "endpoint", ["not-a-url", "ftp://host", "http://\x00", f"http://{'a' * 64}.b"]
)
def test_a_malformed_endpoint_is_one_clear_error(
    user: User, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    point_client_at(endpoint, monkeypatch)

    assert f"hub {endpoint} cannot be reached" in user.fetch_and_fail()


def test_a_hub_that_answers_drop_by_drop_runs_out_of_time(hub: FakeHub, user: User) -> None:
    hub.drips = True

    began = time.monotonic()

    error = user.fetch_and_fail(timeout_s=0.5)

    assert "cannot be reached (no answer within 0.5 s)" in error
    assert 0.5 <= time.monotonic() - began < 5
    hub.released.set()
    wait_for_the_asking_threads()


def test_a_download_that_falls_silent_is_one_clear_error(
    hub: FakeHub, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    hub.put(BIG, LONG)
    hub.faults[BIG] = itertools.chain([Stalled(PIECE + 1000)], itertools.repeat(Status(503)))

    error = user.fetch_and_fail()

    assert "HTTP 503" in error
    assert hub.ranges(BIG) == [None, f"bytes={PIECE}-"]


@pytest.mark.parametrize("missing", ["commit", "tag"])
def test_a_server_that_is_no_hub_is_called_so(hub: FakeHub, user: User, missing: str) -> None:
    if missing == "commit":
        hub.commit = None
    else:
        hub.etags = dict.fromkeys(FILES, "../../elsewhere")

    error = user.fetch_and_fail()

    assert "what answers there is no Hugging Face hub" in error


def test_the_environment_says_where_the_hub_and_the_cache_are(hub: FakeHub, user: User) -> None:
    done = user.fetch_with()

    assert done.stdout == f"{user.repository / 'snapshots' / COMMIT}\n"
    assert hub.ranges(BIG) == [None]
    assert user.cached() == Path(done.stdout.strip())


def test_offline_mode_without_a_cache_is_an_error(hub: FakeHub, user: User) -> None:
    done = user.fetch_with(HF_HUB_OFFLINE="1")

    assert "2Noise/ChatTTS is not complete in the cache" in done.stderr
    assert "unset HF_HUB_OFFLINE" in done.stderr
    assert hub.requests == []


def test_offline_mode_with_a_cache_needs_no_hub(hub: FakeHub, user: User) -> None:
    path = user.fetch()
    hub.requests.clear()

    done = user.fetch_with(HF_HUB_OFFLINE="1")

    assert done.stdout == f"{path}\n"
    assert hub.requests == []


def test_offline_mode_copies_from_the_cache_to_out(
    hub: FakeHub, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.fetch()
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    copied = user.fetch(user.home / "weights")

    assert contents(copied) == FILES
    assert hub.requests == []


def test_a_full_disk_is_one_clear_error(user: User) -> None:
    out = user.home / "weights"
    partial = (out / BIG).with_name("model.safetensors.incomplete")
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")

    error = user.fetch_and_fail(out)

    assert f"cannot be read or written: [Errno 28] No space left on device: '{partial}'" in error


def test_a_directory_that_cannot_be_written_is_one_clear_error(user: User) -> None:
    in_the_way = user.home / "file"
    in_the_way.touch()

    error = user.fetch_and_fail(in_the_way / "weights")

    assert "the checkpoint cannot be read or written" in error
    assert str(in_the_way) in error


def test_two_downloads_to_one_place_do_not_mix(user: User) -> None:
    partial = user.blob(BIG).with_suffix(".incomplete")
    partial.parent.mkdir(parents=True)
    with partial.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        error = user.fetch_and_fail()

    assert f"{BIG}: another process is downloading it" in error
    assert contents(user.fetch()) == FILES


def test_the_token_goes_to_the_hub_and_not_to_its_storage(hub: FakeHub, user: User) -> None:
    done = user.fetch_with(HF_TOKEN="hf_test")

    assert done.returncode == 0
    tokens = {
        it.path.startswith("/storage/"): it.authorization
        for it in hub.file_requests()
        if it.method == "GET"
    }
    assert tokens == {False: "Bearer hf_test", True: None}


@pytest.fixture
def project(tmp_path: Path, hub: FakeHub) -> Path:
    """A directory to run the command in, whose package ChatTTS lists the hashes of this hub."""
    resources = tmp_path / "project" / "ChatTTS" / "res"
    resources.mkdir(parents=True)
    (resources.parent / "__init__.py").touch()
    hashes = {re.sub("[/.]", "_", f"sha256_{name}"): it for name, it in hub.sha256.items()}
    (resources / "sha256_map.json").write_text(json.dumps(hashes))
    (tmp_path / "project" / "chattts_triton").symlink_to(ROOT / "chattts_triton")
    return tmp_path / "project"


def test_the_command_prints_the_directory(user: User, project: Path) -> None:
    done = user.run("-m", "chattts_triton.cli.main", "fetch", "--out", "weights", cwd=project)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{project / 'weights'}\n"
    assert contents(project / "weights") == FILES


def test_the_command_prints_an_error_as_the_only_line(
    hub: FakeHub, user: User, project: Path
) -> None:
    hub.faults[SMALL] = iter([Cut(5), Forged(forged(SMALL))])  # a retry is not worth a line

    done = user.run("-m", "chattts_triton.cli.main", "fetch", cwd=project)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"chattts-triton fetch: {SMALL}: SHA-256 is ")
    assert done.stderr.count("\n") == 1


def test_the_command_names_a_malformed_variable_in_one_line(user: User) -> None:
    done = user.run("-m", "chattts_triton.cli.main", "fetch", HF_ENDPOINT="http://127.0.0.1:99999")

    assert done.returncode == 1
    assert done.stderr.startswith("chattts-triton fetch: a variable HF_... of the environment is")
    assert done.stderr.count("\n") == 1
