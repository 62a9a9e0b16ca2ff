"""`chattts-triton normalize`: shows step by step how a text is read."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chattts_triton.cli.export import DEFAULT_REPOSITORY
from chattts_triton.constants import DEFAULT_SPEED
from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import Manifest, load_manifest, manifest_path
from chattts_triton.tensors import PREPROCESS

if TYPE_CHECKING:
    from chattts_triton.text.normalizer import NormalizedText
    from chattts_triton.text.prompt import PromptEncoder

STANDARD_STREAM = "-"


@dataclass(frozen=True)
class _Export:
    """What an export knows about texts."""

    repository: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        return self.manifest.member_directory(self.repository, PREPROCESS.name) / name


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("normalize", help="show how a text is read", description=__doc__)
    parser.add_argument("text", metavar="TEXT", help="the text; - reads standard input")
    parser.add_argument(
        "--repository",
        type=Path,
        help=f"the model repository, for homophones, lexicon and ids ({DEFAULT_REPOSITORY})",
    )
    parser.add_argument("--lang", choices=("zh", "en"), help="of a text without any letter")
    parser.add_argument(
        "--no-homophones", action="store_true", help="keep characters that the model does not know"
    )
    parser.add_argument("--lexicon", type=Path, help="another file of `word<TAB>replacement` lines")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; needs an exported repository"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Normalise one text and print what became of it."""
    # Imported here: wetext takes half a second to load, and only this command needs it.
    from chattts_triton.text.cleaner import decode_text
    from chattts_triton.text.homophones import HOMOPHONES_FILE, load_homophones
    from chattts_triton.text.normalizer import TextNormalizer

    if args.lexicon and not args.lexicon.is_file():
        raise ModelLoadError(f"--lexicon {args.lexicon}: missing")
    export = _find_export(args.repository, is_required=args.json)
    homophones = load_homophones(export.file(HOMOPHONES_FILE)) if export else {}
    normalizer = TextNormalizer(homophones, args.lexicon or _lexicon_of(export))
    text = decode_text(_read(args.text))
    has_homophones = export is not None and not args.no_homophones
    result = normalizer.normalize(text, args.lang, homophones=has_homophones)
    prompts = _prompts_of(export)
    if args.json and prompts is not None:
        sys.stdout.write(f"{json.dumps(_as_object(result, prompts), ensure_ascii=False)}\n")
        return 0
    if export is None:
        sys.stderr.write(f"{DEFAULT_REPOSITORY}: no exported model, so no homophones\n")
    sys.stdout.write(_as_listing(result, prompts))
    return 0


def _find_export(repository: Path | None, *, is_required: bool) -> _Export | None:
    """The export to use; only where nobody asked for one it may be missing."""
    directory = repository or DEFAULT_REPOSITORY
    if repository is None and not is_required and not manifest_path(directory).is_file():
        return None
    return _Export(directory, load_manifest(directory))


def _lexicon_of(export: _Export | None) -> Path | None:
    from chattts_triton.text.lexicon import LEXICON_FILE

    path = export.repository / PREPROCESS.name / LEXICON_FILE if export else None
    return path if path and path.is_file() else None


def _prompts_of(export: _Export | None) -> PromptEncoder | None:
    from chattts_triton.text.prompt import TOKENIZER_FILE, PromptEncoder

    if export is None:
        return None
    return PromptEncoder(export.file(TOKENIZER_FILE), export.manifest.special_ids)


def _read(text: str) -> bytes:
    if text == STANDARD_STREAM:
        return sys.stdin.buffer.read()
    return text.encode(errors="surrogateescape")  # the bytes that the shell gave


def _as_object(result: NormalizedText, prompts: PromptEncoder) -> dict[str, object]:
    content: dict[str, object] = {
        "normalized": result.text,
        "segments": [segment.text for segment in result.segments],
        "language": result.language,
        "tags": list(result.tags),
        "text_ids": [
            text_id
            for segment in result.segments
            for text_id in prompts.encode(segment.text, DEFAULT_SPEED)
        ],
    }
    if prompts.vocabulary:
        content["unknown_words"] = prompts.vocabulary.unknown_words(result.text)
    return content


def _as_listing(result: NormalizedText, prompts: PromptEncoder | None) -> str:
    rows = [(stage.name, stage.text) for stage in result.stages]
    rows += [("language", result.language), ("tags", " ".join(result.tags) or "none")]
    if prompts and prompts.vocabulary:
        words = prompts.vocabulary.unknown_words(result.text)
        rows.append(("unknown", " ".join(words) or "none"))
    for number, segment in enumerate(result.segments, start=1):
        pause = f"  ({segment.pause_ms} ms)" if segment.pause_ms else ""
        rows.append((f"segment {number}", f"{segment.text}{pause}"))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {' '.join(text.split())}\n" for name, text in rows)
