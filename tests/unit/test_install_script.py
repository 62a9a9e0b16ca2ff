"""`scripts/install.sh` takes ONNX Runtime with CUDA where a driver answers; pip is recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GPU_PACKAGE = "onnxruntime-gpu[cuda,cudnn]"
RECORDING_PYTHON = """#!/bin/sh
echo "$@" >> "{calls}"
"""


@pytest.fixture
def environment(tmp_path):
    """A PATH on which only what the test writes can be a driver."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    return {**os.environ, "PATH": str(tools)}


def write_program(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


def run(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        [str(ROOT / "scripts" / command[0]), *command[1:]],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def pip_calls(environment: dict[str, str], directory: Path) -> list[str]:
    """What the installation asks pip for."""
    calls = directory / "calls"
    write_program(directory / "venv/bin/python", RECORDING_PYTHON.format(calls=calls))
    run(environment, "install.sh", sys.executable, str(directory / "venv"))
    return calls.read_text().splitlines()


def test_without_a_driver_it_is_the_package_for_the_cpu(environment):
    assert run(environment, "onnxruntime_package.sh") == "onnxruntime\n"


@pytest.mark.parametrize(
    ("answer", "package"), [("exit 0", GPU_PACKAGE), ("exit 9", "onnxruntime")]
)
def test_a_driver_counts_where_it_answers(environment, tmp_path, answer, package):
    write_program(tmp_path / "tools/nvidia-smi", f"#!/bin/sh\n{answer}\n")

    assert run(environment, "onnxruntime_package.sh") == f"{package}\n"


def test_without_a_driver_there_is_one_installation(environment, tmp_path):
    (call,) = pip_calls(environment, tmp_path)

    assert call.startswith("-m pip install --constraint constraints.txt --editable client")


def test_with_a_driver_one_package_goes_before_the_other_comes(environment, tmp_path):
    write_program(tmp_path / "tools/nvidia-smi", "#!/bin/sh\nexit 0\n")

    _, *calls = pip_calls(environment, tmp_path)

    assert calls == [
        "-m pip uninstall --yes onnxruntime onnxruntime-gpu",
        f"-m pip install --constraint constraints.txt {GPU_PACKAGE}",
    ]


@pytest.mark.parametrize("answer", [None, "exit 9"])
def test_the_check_of_a_gpu_says_that_there_is_none_before_it_does_anything(
    environment, tmp_path, answer
):
    if answer:
        write_program(tmp_path / "tools/nvidia-smi", f"#!/bin/sh\n{answer}\n")

    result = subprocess.run(
        [str(ROOT / "benchmarks" / "gpu_check.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("gpu_check: no CUDA device: nvidia-smi is missing or does not")


def test_the_extra_is_the_package_that_the_script_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["gpu"]

    assert requirement.startswith(GPU_PACKAGE)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [pin for pin in pins if pin.startswith("onnxruntime-gpu==")]
