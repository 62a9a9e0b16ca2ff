"""A second set of models in the repository comes and goes while `chattts` serves."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from stream_calls import samples_of, stream
from triton_calls import START_TIMEOUT_S, RunningServer, Speech, running_server
from tritonclient.utils import InferenceServerException

from chattts_triton.export.repository import export
from chattts_triton.export.standin import write_standin
from chattts_triton.manifest import (
    MEMBERS,
    PYTHON_MODELS,
    STREAM_NAME,
    load_manifest,
    member_name,
)
from chattts_triton.server.background_server import BackgroundServer, serve_in_background
from chattts_triton.server.stub_watch import Stub
from chattts_triton.serving.model_config import check_configs

NAME = "other-2"
OTHER_MEMBERS = {member_name(NAME, member) for member in MEMBERS}
OTHER_STREAM = member_name(NAME, STREAM_NAME)
KEY = "a-key-for-tests"
HEADERS = {"triton-grpc-protocol-admin-key": KEY}
TEXTS = ("你好，世界。", "Good night, my friend.", "今天天气很好。", "嗯")
NUM_CODES = 12
LONG = 100


class AdminServer(RunningServer):
    """A server with its admin key and its processes."""

    def __init__(self, server: BackgroundServer, client: grpcclient.InferenceServerClient) -> None:
        super().__init__(server.grpc, server.http, server.metrics, Path(), client)
        self.background = server

    def load(self, name: str = NAME) -> None:
        self.client.load_model(name, headers=HEADERS, client_timeout=START_TIMEOUT_S)

    def unload(self, name: str = NAME) -> None:
        """Unload a set, and wait until its processes have ended."""
        self.client.unload_model(name, headers=HEADERS, unload_dependents=True)
        wait_for(lambda: not set(self.stubs()) & OTHER_MEMBERS)

    def say(self, name: str, text: str, seed: int, num_codes: int = NUM_CODES) -> Speech:
        tensors = {
            "TEXT": np.array([[text.encode()]], dtype=object),
            "SEED": np.array([[seed]], dtype=np.int64),
            "MAX_NEW_TOKENS": np.array([[num_codes]], dtype=np.int32),
        }
        return Speech.of_row(self.call(name, tensors), 0)

    def say_all(self, name: str) -> list[Speech]:
        return [self.say(name, text, seed) for seed, text in enumerate(TEXTS)]

    def num_executions(self, model: str) -> int:
        statistics = self.client.get_inference_statistics(model).model_stats[0]
        count: int = statistics.execution_count
        return count

    def triton(self) -> psutil.Process:
        (process,) = psutil.Process(self.background.process.pid).children()
        return process

    def stubs(self) -> dict[str, psutil.Process]:
        stubs = {}
        for child in self.triton().children():
            try:
                stub = Stub.of(child.cmdline())
            except psutil.Error:  # it has just ended
                continue
            if stub:
                stubs[stub.model] = child
        return stubs

    def is_ready(self, name: str) -> bool:
        return bool(self.client.is_model_ready(name))


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("the condition was not met in time")


class Load:
    """Four threads that go on calling `chattts` until the context ends; each answer is checked."""

    def __init__(self, server: AdminServer) -> None:
        self._server = server
        self._alone = server.say_all("chattts")
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(len(TEXTS) + 1)
        self.num_calls: Counter[int] = Counter()

    def __enter__(self) -> Load:
        self._callers = [self._pool.submit(self._call, n) for n in range(len(TEXTS))]
        self._callers.append(self._pool.submit(self._ask_whether_ready))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for caller in self._callers:
            caller.result()

    def wait_for_more_calls(self) -> None:
        """Each thread has another call behind it that began after this."""
        before = Counter(self.num_calls)
        wait_for(lambda: all(self.num_calls[n] >= before[n] + 2 for n in range(len(TEXTS))))

    def _call(self, number: int) -> None:
        while not self._stop.is_set():
            speech = self._server.say("chattts", TEXTS[number], number)
            assert speech == self._alone[number]
            self.num_calls[number] += 1

    def _ask_whether_ready(self) -> None:
        while not self._stop.wait(0.05):
            assert self._server.is_ready("chattts")


@contextlib.contextmanager
def in_flight(server: AdminServer) -> Iterator[Future[Speech]]:
    """A call of the second set that has come as far as `gpt` and takes longer than an unload."""
    preprocess = f"{NAME}_preprocess"
    num_before = server.num_executions(preprocess)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(server.say, NAME, TEXTS[0], 0, LONG)
        wait_for(lambda: server.num_executions(preprocess) > num_before)
        yield call


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("other") / "tiny"
    write_standin("tiny", directory, seed=1)
    return directory


@pytest.fixture(scope="module")
def other_alone(other_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Speech]:
    """What the other checkpoint says where it is the only one, as `chattts`."""
    repository = tmp_path_factory.mktemp("alone") / "model_repository"
    export(other_checkpoint, repository, "fp32")
    with running_server(repository) as server:
        return [
            server.speak_one(text, SEED=seed, MAX_NEW_TOKENS=NUM_CODES)
            for seed, text in enumerate(TEXTS)
        ]


@pytest.fixture(scope="module")
def repository(
    tiny_repositories: dict[str, Path],
    other_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    repository = tmp_path_factory.mktemp("both") / "model_repository"
    shutil.copytree(tiny_repositories["fp32"], repository, symlinks=True, copy_function=os.link)
    export(other_checkpoint, repository, "fp32", name=NAME)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[AdminServer]:
    key_file = repository.parent / "admin-key"
    key_file.write_text(KEY)
    with (
        serve_in_background(
            repository,
            arguments=[f"--admin-key-file={key_file}"],
            timeout_s=START_TIMEOUT_S,
        ) as background,
        grpcclient.InferenceServerClient(background.grpc) as client,
    ):
        yield AdminServer(background, client)


def test_a_server_starts_with_the_set_chattts_alone(server: AdminServer):
    assert set(server.stubs()) == {*PYTHON_MODELS}
    assert server.is_ready("chattts")
    assert not server.is_ready(NAME)


def test_b_87_a_second_set_comes_and_goes_while_chattts_goes_on_bit_for_bit(
    server: AdminServer, other_alone: list[Speech]
):
    triton = server.triton()

    with Load(server) as load:
        server.load()
        load.wait_for_more_calls()
        others = server.say_all(NAME)
        long = server.say(NAME, TEXTS[0], 0, num_codes=LONG)
        with in_flight(server) as call:
            server.unload()
        load.wait_for_more_calls()

    assert others == other_alone
    assert call.result() == long
    for other, ours in zip(others, server.say_all("chattts"), strict=True):
        assert other.is_sound()
        assert other.audio != ours.audio
    assert not server.is_ready(NAME)
    assert server.triton() == triton
    assert set(server.stubs()) == {*PYTHON_MODELS}


def test_the_stream_of_a_second_set_comes_and_goes_by_itself(server: AdminServer):
    server.load()
    server.load(OTHER_STREAM)
    options = {"SEED": 0, "MAX_NEW_TOKENS": NUM_CODES, "MODE": "quality"}

    chunks = stream(server, TEXTS[0], model=OTHER_STREAM, **options)

    one_shot = server.say(NAME, TEXTS[0], 0).samples
    assert np.abs(samples_of(chunks) - one_shot).max() <= 1e-5
    server.client.unload_model(OTHER_STREAM, headers=HEADERS)
    wait_for(lambda: OTHER_STREAM not in server.stubs())
    server.unload()
    assert set(server.stubs()) == {*PYTHON_MODELS}


def test_a_damaged_second_set_is_refused_and_chattts_is_not_disturbed(
    server: AdminServer, repository: Path
):
    triton = server.triton()
    file = load_manifest(repository, NAME).member_directory(repository, "gpt") / "gpt.onnx.data"
    content = file.read_bytes()
    file.write_bytes(content[:-1])

    with Load(server) as load, pytest.raises(InferenceServerException) as caught:
        server.load()
    file.write_bytes(content)
    load_message = caught.value.message()

    assert f"load failed for model '{NAME}'" in load_message
    assert (
        f"ModelLoadError: {file.relative_to(repository)}: {len(content) - 1} bytes, "
        f"manifest says {len(content)}"
    ) in load_message
    assert all(load.num_calls[number] > 1 for number in range(len(TEXTS)))
    assert not server.is_ready(NAME)
    assert server.triton() == triton
    wait_for(lambda: set(server.stubs()) == {*PYTHON_MODELS})


def test_a_set_that_is_exported_again_changes_at_its_next_load(
    server: AdminServer, repository: Path, tiny_checkpoint: Path, other_alone: list[Speech]
):
    server.load()
    former = load_manifest(repository)
    chattts = server.say_all("chattts")

    export(tiny_checkpoint, repository, "fp32", name=NAME)
    still = server.say_all(NAME)
    server.load()

    assert still == other_alone
    assert server.say_all(NAME) == chattts == server.say_all("chattts")
    assert load_manifest(repository) == former
    server.unload()


def test_a_killed_process_of_a_second_set_restarts_the_server_with_chattts_alone(
    server: AdminServer,
):
    chattts = server.say_all("chattts")
    server.load()
    triton = server.triton()

    server.stubs()[f"{NAME}_gpt"].kill()
    server.background.wait_until_ready(START_TIMEOUT_S)

    assert server.triton() != triton
    assert set(server.stubs()) == {*PYTHON_MODELS}
    assert not server.is_ready(NAME)
    assert server.say_all("chattts") == chattts


def test_a_set_whose_directories_are_removed_is_gone(
    server: AdminServer, repository: Path, tmp_path: Path
):
    for model in (NAME, OTHER_STREAM, *OTHER_MEMBERS):
        shutil.move(repository / model, tmp_path / model)

    with pytest.raises(InferenceServerException, match=f"failed to load '{NAME}'"):
        server.load()
    check_configs(repository)
    assert server.say("chattts", TEXTS[0], 0).is_sound()

    for model in (NAME, OTHER_STREAM, *OTHER_MEMBERS):
        shutil.move(tmp_path / model, repository / model)
