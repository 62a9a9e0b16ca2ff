"""What an installed package finds of the files that the wheel takes along."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chattts_triton.export.repository import template_directory
from chattts_triton.manifest import DEFAULT_ENSEMBLE, PYTHON_MODELS

ROOT = Path(__file__).parents[2]
FIND = """
from chattts_triton.export.choose import demo_voice_directory
from chattts_triton.export.repository import template_directory
print(template_directory(), demo_voice_directory(), sep="\\n")
"""
DEMO = "from chattts_triton.cli.main import main; raise SystemExit(main(['demo']))"


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """The package as the wheel lays it out, by links to the tree; nothing of the tree around it."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site-packages"
    for included in wheel["only-include"]:
        source = next((name for name in wheel["sources"] if included.startswith(name)), included)
        target = wheel["sources"].get(source, included) + included.removeprefix(source)
        link(ROOT / included, site / target)
    return site


def link(source: Path, target: Path) -> None:
    """Make directories and link files, since Python resolves where a linked package lies."""
    for path in source.rglob("*.py") if source.name == "chattts_triton" else [source]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],  # the working directory comes before what is installed
        cwd=site,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(site), "CHATTTS_CHECKPOINT": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_template_and_the_demonstration_voice_are_found_in_the_package(
    site_packages: Path,
) -> None:
    found = run(site_packages, FIND)

    template, demo_voice = map(Path, found.stdout.splitlines())
    assert template == site_packages / "chattts_triton" / "repository_template"
    assert demo_voice == site_packages / "chattts_triton" / "demo_voice"
    assert (demo_voice / "asset" / "tokenizer" / "tokenizer.json").is_file()
    for model in (*PYTHON_MODELS, DEFAULT_ENSEMBLE):
        config = (template_directory() / model / "config.pbtxt").read_bytes()
        assert (template / model / "config.pbtxt").read_bytes() == config


def test_an_installation_without_the_demonstration_voice_says_how_to_go_on(
    site_packages: Path,
) -> None:
    (site_packages / "chattts_triton" / "demo_voice").unlink()

    refused = run(site_packages, DEMO)

    assert refused.returncode == 1
    error = refused.stderr.splitlines()[-1]
    assert error.startswith("chattts-triton demo: the Hugging Face hub cannot be reached (offline")
    assert "demo_voice/asset/gpt/config.json: missing" in error
    assert "HF_ENDPOINT" in error
    assert "Traceback" not in refused.stderr
