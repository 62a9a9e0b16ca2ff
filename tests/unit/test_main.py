"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chattts_triton import __version__
from chattts_triton.cli.main import COMMANDS, main
from chattts_triton.errors import InvalidRequestError, shorten


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_command_has_help(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 0
    assert "usage: chattts-triton" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["sing"], ["standin"], ["export", "--precision=int4"], ["say"]]
)
def test_wrong_use_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_our_errors_are_one_line_and_exit_with_1(tmp_path, capsys):
    code = main(["export", f"--checkpoint={tmp_path}", "--precision=fp32"])

    assert code == 1
    err = capsys.readouterr().err
    assert err.startswith("chattts-triton export: ")
    assert err.count("\n") == 1
    assert "not a ChatTTS checkpoint" in err


WITHOUT_A_PACKAGE = """
import sys
sys.modules[sys.argv[1]] = None
from chattts_triton.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("package", "arguments", "install"),
    [
        ("huggingface_hub", ["fetch"], "[export]"),
        ("safetensors", ["standin", "--size=tiny", "--out=OUT"], "[export]"),
        ("onnx", ["export", "--checkpoint=OUT", "--precision=fp32"], "[export]"),
        ("psutil", ["serve", "--repository=OUT"], "[serve]"),
        ("numpy", ["voices", "add", "a", "--seed=1", "--repository=OUT"], "[voices]"),
        ("huggingface_hub", ["demo", "--out=OUT/demo.wav"], "[export,serve]"),
        ("psutil", ["demo", "--out=OUT/demo.wav"], "[export,serve]"),
        ("tokenizers", ["normalize", "--json", "--repository=EXPORT", "a"], ""),
    ],
)
def test_a_package_that_is_not_installed_is_one_line_with_the_extra_that_has_it(
    tiny_repositories, tmp_path, package, arguments, install
):
    places = {"OUT": str(tmp_path), "EXPORT": str(tiny_repositories["int8"])}
    for word, place in places.items():
        arguments = [argument.replace(word, place) for argument in arguments]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_PACKAGE, package, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )

    assert result.returncode == 1
    assert result.stderr.startswith(f"chattts-triton {arguments[0]}: {package} is not installed")
    assert f"pip install 'chattts-triton{install}'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_module_of_ours_that_is_missing_is_no_matter_of_an_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "chattts_triton.export.standin", None)

    with pytest.raises(ModuleNotFoundError, match=r"chattts_triton\.export\.standin"):
        main(["standin", "--size=tiny", f"--out={tmp_path}"])


def test_the_installed_command_knows_its_version():
    result = subprocess.run(
        [sys.executable, "-m", "chattts_triton.cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert result.stdout.strip() == __version__


def test_asking_for_help_loads_no_framework():
    """`say` and `serve` start fast only while no command module imports heavily."""
    code = (
        "import sys; from chattts_triton.cli.main import build_parser; build_parser();"
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'tritonclient'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert result.stdout.strip() == "[]"


def test_a_refused_field_names_itself_what_came_and_what_is_wanted():
    error = InvalidRequestError.of("SEED", "x" * 200, "a number")

    assert str(error).startswith("SEED: got 'xxx")
    assert str(error).endswith("..., wanted a number")
    assert len(str(error)) < 100


@pytest.mark.parametrize("value", ["a" * 10**7, b"\xff" * 10**6, "短", 5, ["x"] * 100])
def test_a_value_in_a_message_is_short(value):
    assert len(shorten(value)) <= 60
