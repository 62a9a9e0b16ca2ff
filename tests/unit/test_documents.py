"""The documents name only what exists, and their tables say what the code does."""

from __future__ import annotations

import argparse
import ast
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.voice_tables import as_tables, mandarin
from chattts_triton import __version__
from chattts_triton.cli.main import COMMANDS, build_parser
from chattts_triton.cli.say import WARNING_TEXTS
from chattts_triton.config import (
    MAX_CALL_CODES,
    MAX_MODEL_LEN,
    Config,
    EngineConfig,
    PreprocessConfig,
    StreamConfig,
    VocoderConfig,
)
from chattts_triton.errors import (
    ChatTTSError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
)
from chattts_triton.export.compare import (
    LARGEST_KL,
    MAX_TEXTS,
    SMALLEST_AGREEMENT,
    Comparison,
    as_table,
)
from chattts_triton.manifest import load_manifest
from chattts_triton.serving.preprocess import UNKNOWN_WORDS
from chattts_triton.serving.record import OUTCOMES
from chattts_triton.serving.utterance import (
    MAX_REFINED_IDS,
    REFINE_REFUSED,
    REFINED_IDS_PER_PROMPT_ID,
    SPARE_REFINED_IDS,
)
from chattts_triton.tensors import CHATTTS, CHATTTS_STREAM, MODE, OPTIONS, TensorSpec
from chattts_triton.text.cleaner import MAX_TEXT_BYTES
from chattts_triton.text.refinement import LARGEST_GROWTH, SMALLEST_SHARE_KEPT, SPARE_WORDS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "client" / "README.md"])

# Names in a checkpoint or in another project, and what only a run of a command makes.
ELSEWHERE = re.compile(r"asset/|ChatTTS/|\.venv/|benchmarks/results/|build/|checkpoints/")
FILE_NAME = re.compile(r"[\w./-]+(\.(py|md|sh|toml|txt|json|pbtxt|ya?ml)|/)")


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def fenced_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", text)


def code(text: str) -> list[str]:
    """Everything that is set as code: whole blocks, and what stands in backticks."""
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", text))


def section_of(document: Path, heading: str) -> str:
    return read(document).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(document: Path, heading: str) -> list[list[str]]:
    """The body of the first table of a section, cell by cell."""
    first = re.findall(r"(?m)(?:^\|.*\|$\n?)+", section_of(document, heading))[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in first.splitlines()[2:]
    ]


def paths(text: str) -> list[str]:
    """What is set in backticks, has a slash, and looks like a file or lies in our directories."""
    spans = re.findall(r"`([^`\s]+)`", re.sub(r"(?ms)^```.*?^```", "", text))
    return [
        span
        for span in spans
        if "/" in span
        and not span.startswith("/")
        and not ELSEWHERE.match(span)
        and (FILE_NAME.fullmatch(span) or (ROOT / span.split("/")[0]).is_dir())
    ]


def by_name(documents: list[Path]) -> list[object]:
    return [pytest.param(each, id=str(each.relative_to(ROOT))) for each in documents]


every_document = pytest.mark.parametrize("document", by_name(DOCUMENTS))


def test_the_documents_of_the_project_are_there() -> None:
    names = {str(document.relative_to(ROOT)) for document in DOCUMENTS}

    assert names >= {
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "client/README.md",
        "docs/export.md",
        "docs/observing.md",
        "docs/performance.md",
        "docs/serving.md",
        "docs/streaming.md",
        "docs/text.md",
        "docs/voices.md",
    }


@every_document
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", read(document))
    relative = [target for target in targets if not target.startswith(("http://", "https://"))]

    broken = [target for target in relative if not leads_somewhere(document, target)]

    assert broken == []


def leads_somewhere(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    page = document.parent / path if path else document
    return page.exists() and (not anchor or anchor in anchors(page))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.+)$", read(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_every_path_in_backticks_exists(document: Path) -> None:
    missing = [
        path
        for path in paths(read(document))
        if not (ROOT / path).exists() and not (document.parent / path).exists()
    ]

    assert missing == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`tests/nothing.py` and `docs/`", ["tests/nothing.py", "docs/"]),
        ("`tests/nothing`", ["tests/nothing"]),
        ("`and/or`, `/v2/health`, `asset/x.json`, `<member>/1/x.json`, `config.pbtxt`", []),
        ("```\n`tests/nothing.py`\n```", []),
    ],
)
def test_paths_are_told_from_other_code(text: str, found: list[str]) -> None:
    assert paths(text) == found


@every_document
def test_every_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", read(ROOT / "Makefile")))

    used = {
        name
        for span in code(read(document))
        for name in re.findall(r"(?m)(?:^|[;&] *|RUN )make (?:[A-Z]+=\S+ )*([a-z-]+)", span)
    }

    assert used - targets == set()


def test_every_make_target_is_documented() -> None:
    helped = set(re.findall(r"(?m)^([a-z-]+):.*?## ", read(ROOT / "Makefile")))

    documented = {cells[0].strip("`") for cells in table(ROOT / "CONTRIBUTING.md", "Set-up")}

    assert documented == {f"make {target}" for target in helped - {"help"}}


@every_document
def test_every_command_exists(document: Path) -> None:
    used = {
        name
        for span in code(read(document))
        for name in re.findall(r"(?:^|[\s/])chattts-triton ([a-z][\w-]*)", span)
    }

    assert used - set(COMMANDS) == set()


@every_document
def test_every_option_of_a_command_exists(document: Path) -> None:
    wrong = [
        f"{command} {option}"
        for span in code(read(document))
        for command, arguments in re.findall(r"chattts-triton ([a-z][\w-]*)([^|#\n]*)", span)
        for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", arguments)
        if option not in options_of(command)
    ]

    assert wrong == []


@every_document
def test_python_snippets_compile(document: Path) -> None:
    for snippet in fenced_blocks(read(document), "python"):
        assert ast.parse(snippet).body


def test_the_readme_shows_both_clients() -> None:
    client, plain = fenced_blocks(read(README), "python")

    assert "from chattts_client import" in client
    assert "import tritonclient.grpc" in plain


def test_the_tensors_in_the_readme_are_those_of_the_model() -> None:
    rows = table(README, "The tensors of `chattts`")

    declared = [row_of(spec, "input") for spec in CHATTTS.inputs]
    declared += [row_of(spec, "output") for spec in CHATTTS.outputs]
    assert [row[:4] for row in rows] == declared


def test_the_tensors_of_a_stream_are_those_of_the_model() -> None:
    rows = table(ROOT / "docs" / "streaming.md", "The tensors of `chattts_stream`")

    own = [spec for spec in CHATTTS_STREAM.inputs if spec not in CHATTTS.inputs]
    declared = [row_of(spec, "input", num_rows="1") for spec in own]
    declared += [row_of(spec, "output", num_rows="1") for spec in CHATTTS_STREAM.outputs]
    assert [row[:4] for row in rows] == declared


def row_of(spec: TensorSpec, direction: str, num_rows: str = "N") -> list[str]:
    datatype = "BYTES" if spec.dtype == "STRING" else spec.dtype
    length = "S" if spec.shape == (-1,) else str(spec.shape[0])
    kind = f"optional {direction}" if spec in (*OPTIONS, MODE) else direction
    return [f"`{spec.name}`", kind, datatype, f"[{num_rows}, {length}]"]


def test_the_metrics_are_documented() -> None:
    made = set(re.findall(r'"(chattts_\w+)"', read(ROOT / "chattts_triton/serving/metrics.py")))

    rows = table(ROOT / "docs" / "observing.md", "Metrics")

    assert {row[0].strip("`") for row in rows} == made


def test_the_outcomes_are_documented() -> None:
    section = section_of(ROOT / "docs" / "observing.md", "Metrics")

    documented = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \|$", section)

    assert tuple(documented) == OUTCOMES


def test_the_limits_of_a_text_in_the_readme_are_those_of_the_code() -> None:
    meanings = {row[0].strip("`"): row[4] for row in table(README, "The tensors of `chattts`")}

    max_characters = PreprocessConfig().max_characters
    assert f"at most {max_characters:,} characters and {MAX_TEXT_BYTES:,} bytes" in meanings["TEXT"]


def test_the_warnings_are_explained() -> None:
    assert set(WARNING_TEXTS) == {REFINE_REFUSED, UNKNOWN_WORDS}
    for document in (README, ROOT / "client" / "README.md"):
        assert REFINE_REFUSED in read(document)
        assert UNKNOWN_WORDS in read(document)


def test_the_bound_of_a_refinement_in_the_architecture_is_that_of_the_code() -> None:
    section = " ".join(section_of(ROOT / "ARCHITECTURE.md", "Continuous batching").split())

    assert f"at most {MAX_REFINED_IDS} steps" in section
    assert (REFINED_IDS_PER_PROMPT_ID, SPARE_REFINED_IDS) == (2, 32)
    assert "at most twice its ids and 32 more" in section
    assert f"at least {SMALLEST_SHARE_KEPT:.0%}".replace("%", " %") in section
    assert f"at most {LARGEST_GROWTH} times as many and {SPARE_WORDS} more" in section


def test_the_length_of_a_slot_in_the_architecture_is_that_of_the_code() -> None:
    assert f"A slot has {MAX_MODEL_LEN:,} positions" in read(ROOT / "ARCHITECTURE.md")


def test_the_layers_in_the_architecture_are_those_that_the_linter_holds() -> None:
    (drawn,) = fenced_blocks(section_of(ROOT / "ARCHITECTURE.md", "Layer rule"), "text")
    contracts = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (held,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]

    plain = [layer.replace("chattts_triton.", "").replace(" : ", ", ") for layer in held]
    assert drawn.splitlines() == plain


def test_every_part_of_the_package_is_in_the_readme() -> None:
    parts = {
        f"chattts_triton/{path.parent.name}/"
        for path in (ROOT / "chattts_triton").glob("*/__init__.py")
    }

    documented = {row[0].strip("`") for row in table(README, "Where everything lies")}

    assert parts - documented == set()


def test_every_directory_of_tests_is_in_the_contributing() -> None:
    directories = {
        f"tests/{path.name}/"
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }

    documented = {row[0].strip("`") for row in table(ROOT / "CONTRIBUTING.md", "Tests")}

    assert documented == directories


def test_the_files_of_an_export_are_documented(tiny_repositories: dict[str, Path]) -> None:
    rows = table(ROOT / "docs" / "export.md", "Layout")

    documented = {
        (row[1].strip("`"), name) for row in rows for name in re.findall(r"`([^`]+)`", row[0])
    }

    files = map(Path, load_manifest(tiny_repositories["fp32"]).files)
    assert documented == {(file.parts[0], file.name) for file in files}


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("the request is wrong", InvalidRequestError),
        ("the waiting queue is full", OverloadedError),
        ("the model failed on a valid request", GenerationError),
    ],
)
def test_the_statuses_in_the_readme_are_those_of_the_errors(
    what: str, error: type[ChatTTSError]
) -> None:
    statuses = {row[0]: row[1:3] for row in table(README, "Errors")}

    grpc_status, http_status = statuses[what]

    assert grpc_status.removesuffix("UMENT") == error.triton_code
    assert http_status == str(error.http_status)


@pytest.mark.parametrize(
    ("page", "heading", "config"),
    [
        ("serving.md", "Parameters of the engine", EngineConfig),
        ("serving.md", "Parameters of `preprocess`", PreprocessConfig),
        ("serving.md", "Parameters of `vocos_decoder`", VocoderConfig),
        ("streaming.md", "Chunks", StreamConfig),
    ],
)
def test_the_parameters_of_a_model_and_their_defaults_are_documented(
    page: str, heading: str, config: type[Config]
) -> None:
    rows = table(ROOT / "docs" / page, heading)

    documented = {name.strip("`"): default for name, default, _ in rows}

    assert documented == {field.name: str(field.default).lower() for field in fields(config)}


def test_how_much_fits_into_a_call_in_the_readme_is_what_the_code_takes() -> None:
    section = " ".join(section_of(README, "The tensors of `chattts`").split())
    engine = EngineConfig()

    assert f"which is {engine.max_num_seqs + engine.max_waiting} by default" in section
    assert f"must not be over {MAX_CALL_CODES:,} either" in section


def test_the_options_of_serve_and_their_defaults_are_documented() -> None:
    rows = table(ROOT / "docs" / "serving.md", "Options")

    documented = {name.strip("`"): default.strip("`") for name, default, _ in rows}

    options = options_of("serve")
    del options["-h"], options["--help"]
    assert list(documented) == list(options)
    for option, default in documented.items():
        if options[option] is None:
            assert default in ("none", "by the model's configuration")
        else:
            assert default == {"False": "off"}.get(str(options[option]), str(options[option]))


def test_the_options_of_export_are_documented() -> None:
    documented = [row[0].strip("`") for row in table(ROOT / "docs" / "export.md", "Options")]

    options = options_of("export")
    del options["-h"], options["--help"]
    assert documented == list(options)


def options_of(command: str) -> dict[str, object]:
    """The options of a command and its actions with their defaults, in the order of its help."""
    parser = choices(build_parser())[command]
    return {
        option: action.default
        for each in (parser, *choices(parser).values())
        for action in each._actions
        for option in action.option_strings
    }


def choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below a parser, by name."""
    return {
        name: choice
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, choice in action.choices.items()
    }


def test_the_figures_of_performance_are_those_of_the_result_files() -> None:
    page = read(ROOT / "docs" / "performance.md")
    results = {
        path.name: json.loads(read(path))
        for path in (ROOT / "benchmarks" / "results").glob("*.json")
        # Those of these scripts stand on pages of their own.
        if not path.name.startswith(("voice_", "queue_delay"))
    }

    # The tables of these are held, as a whole, by tests/unit/test_benchmarks.py.
    apart = r"(?!benchmarks/(?:quick|side_by_side|frameworks|perf_analyzer)\.py)"
    marks = re.findall(rf"<!-- (begin|end): output of {apart}(\S+) -->", page)

    scripts = ["steps", "streams", "stream_quality", "long_text", "text", "precisions", "dither"]
    assert marks == [
        (side, f"benchmarks/{script}.py") for script in scripts for side in ("begin", "end")
    ]
    for result in results.values():
        assert f"`{result['command']}`, {result['date']}, {result['machine']}" in page
    for batch in results["steps_fp32.json"]["batches"].values():
        assert f"| {batch['steps_ratio']:.2f} | {batch['engine_step_ms']:.1f} |" in page
    assert f": {results['steps_fp32.json']['pss_mb']} MB" in page
    for precision in ("fp32", "int8"):
        result = results[f"long_text_{precision}.json"]
        assert f"| {result['one_after_another_s']} | {result['ratio']:.2f} |" in page
    for mode, row in results["streams.json"]["modes"].items():
        assert f"| {mode} | {row['first_audio_s']:.3f} | {row['ratio']:.1f} |" in page
        assert f"| {row['largest_difference']:.1e} |" in page
    for name, row in results["streams.json"]["recovery"].items():
        assert f"| {name} | {row['error_s']:.2f} | {row['back_s']:.2f} |" in page
    comparisons = [Comparison(**each) for each in results["precisions.json"]["comparisons"]]
    for line in as_table(comparisons).splitlines():
        assert line in page
    for length in results["dither.json"]["lengths"].values():
        assert f"| {length['decode_ms']:.1f} | {length['pcm16_ms']:.2f} |" in page


def test_the_model_card_holds_the_report() -> None:
    page = read(ROOT / "docs" / "demo_voice.md")
    tables = {"voice_report": as_tables, "voice_mandarin": mandarin}

    for name, as_text in tables.items():
        result = json.loads(read(ROOT / "benchmarks" / "results" / f"{name}.json"))
        mark = f"output of benchmarks/{name}.py -->"
        shown = page.partition(f"<!-- begin: {mark}\n")[2].partition(f"\n<!-- end: {mark}")[0]
        assert shown == as_text(result)


def test_the_changelog_has_the_version() -> None:
    versions = re.findall(r"(?m)^## \[([^\]]+)\] - \S+", read(ROOT / "CHANGELOG.md"))

    assert versions[0] == __version__


def test_the_image_installs_by_the_steps_of_make_install() -> None:
    dockerfile = read(ROOT / "Dockerfile")
    extras = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]

    assert "RUN make install PYTHON=python3.11" in dockerfile
    taken = [extra for extra in extras if extra != "gpu"]  # which takes the place of a package
    assert f'".[{",".join(taken)}]"' in read(ROOT / "scripts" / "install.sh")


def test_all_that_the_image_copies_is_there_and_not_ignored() -> None:
    copied = re.findall(r"(?m)^COPY (.+) \S+$", read(ROOT / "Dockerfile"))
    names = {name for line in copied for name in line.split()}
    patterns = read(ROOT / ".dockerignore").splitlines()

    assert {name for name in names if not (ROOT / name).exists()} == set()
    assert {f"!{name}" for name in names} <= set(patterns)


def test_the_health_check_of_the_image_asks_for_the_model() -> None:
    check = re.search(
        r'(?s)HEALTHCHECK.*?CMD \["python3", "-c", "(.+?)"\]', read(ROOT / "Dockerfile")
    )

    assert check
    assert ast.parse(check[1]).body
    assert "http://127.0.0.1:8000/v2/models/chattts/ready" in check[1]


def test_the_options_of_a_comparison_and_its_bound_are_documented() -> None:
    section = section_of(ROOT / "docs" / "export.md", "Comparing precisions")
    rows = table(ROOT / "docs" / "export.md", "Comparing precisions")
    documented = [row[0].strip("`") for row in rows]
    options = options_of("compare-precision")
    bound = " ".join(section_of(ROOT / "docs" / "performance.md", "Precisions").split())

    del options["-h"], options["--help"]
    assert documented == list(options)
    assert f"{options['--texts']} by default, at most {MAX_TEXTS}" in section
    assert f"at most; {options['--steps']} by default" in section
    assert f"at {SMALLEST_AGREEMENT:.0%}".replace("%", " %") in bound
    assert f"at most {LARGEST_KL:.0e}".replace("e-0", "e-") in bound
