"""`chattts-triton voices`: the named voices of a model repository, and new ones."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chattts_triton.errors import ChatTTSError, InvalidRequestError
from chattts_triton.manifest import DEFAULT_NAME, load_manifest, manifest_path
from chattts_triton.tensors import PREPROCESS
from chattts_triton.voices.book_file import (
    FILE_NAME,
    Entries,
    book_path,
    editing,
    read_entries,
)
from chattts_triton.voices.entry import LANGUAGES, VoiceEntry

if TYPE_CHECKING:
    from chattts_triton.voices.speaker import SpeakerStatistics

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

NUM_CARDS = 10**9  # a seed of at most nine digits can be written down
DEFAULT_REPOSITORY = Path("model_repository")
_ENCODER_THREADS = 2
_COLUMNS = ("name", "speaker", "language", "prompt", "description")


def add_parser(subparsers: Parsers) -> None:
    """Declare the command and its actions."""
    parser = subparsers.add_parser(
        "voices",
        help="list, draw, add, show and export voices",
        description="The named voices of a model repository. A running server knows a change "
        "within a second or two, without a restart.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_list(actions)
    _add_draw(actions)
    _add_add(actions)
    _add_show(actions)
    _add_export(actions)


def run_list(args: argparse.Namespace) -> int:
    """Print every voice, one a line."""
    entries = _entries(args).values()
    if args.json:
        _print_json([_facts(entry) for entry in entries])
        return 0
    rows = [_COLUMNS, *(_cells(entry) for entry in entries)]
    widths = [max(_width(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        cells = [
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    return 0


def run_draw(args: argparse.Namespace) -> int:
    """Print the seed and the string of a voice that nobody chose; keep it where it has a name."""
    seed = secrets.randbelow(NUM_CARDS)
    speaker = _speaker_string(VoiceEntry("drawn", seed=seed), args)
    if args.name is not None:
        _keep(VoiceEntry(args.name, seed=seed), args)
    if args.json:
        _print_json({"name": args.name, "seed": seed, "speaker": speaker})
    else:
        sys.stdout.write(f"seed:{seed}\n{speaker}\n")
    return 0


def run_add(args: argparse.Namespace) -> int:
    """Keep a voice under a name."""
    if (args.from_wav is None) != (args.text is None):
        args.parser.error("--from-wav and --text go together")
    if args.seed is None and args.speaker is None and args.from_wav is None:
        args.parser.error("wanted one of --seed, --speaker and --from-wav")
    seed = args.seed
    if seed is None and args.speaker is None:
        seed = secrets.randbelow(NUM_CARDS)
    entry = VoiceEntry(
        args.name,
        seed=seed,
        speaker=args.speaker or "",
        description=args.description,
        language=args.language,
        tags=tuple(args.tag),
    )
    if args.from_wav is not None:
        entry = replace(entry, prompt=_prompt(args), text=args.text)
    _keep(entry, args)
    sys.stdout.write(f"{entry.name}: {entry.source}{_sample_note(entry)}\n")
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Print what is known of one voice, its speaker string last."""
    entry = _find(args)
    facts = _facts(entry) | {"speaker": _speaker_string(entry, args)}
    if args.json:
        _print_json(facts | {"prompt": entry.prompt or None})
        return 0
    for key, value in facts.items():
        if value not in (None, "", []):
            text = ", ".join(value) if isinstance(value, list) else value
            sys.stdout.write(f"{key}: {text}\n")
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Write the ChatTTS speaker string of one voice."""
    speaker = _speaker_string(_find(args), args)
    if args.out is None:
        sys.stdout.write(f"{speaker}\n")
        return 0
    try:
        args.out.write_text(f"{speaker}\n", encoding="utf-8")
    except OSError as error:
        raise ChatTTSError(f"cannot write {args.out}: {error.strerror or error}") from error
    return 0


def _add_action(actions: Parsers, name: str, summary: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, description=summary)
    parser.add_argument("--repository", type=Path, default=DEFAULT_REPOSITORY, metavar="DIR")
    parser.add_argument(
        "--model", default=DEFAULT_NAME, metavar="NAME", help="as given to `export --name`"
    )
    return parser


def _add_list(actions: Parsers) -> None:
    parser = _add_action(actions, "list", "print every named voice")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_list)


def _add_draw(actions: Parsers) -> None:
    parser = _add_action(actions, "draw", "draw a voice at random; print its seed and its string")
    parser.add_argument("--name", metavar="NAME", help="keep it under this name")
    _add_replace(parser)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_draw)


def _add_add(actions: Parsers) -> None:
    parser = _add_action(actions, "add", "keep a voice under a name")
    parser.add_argument("name", metavar="NAME")
    speaker = parser.add_mutually_exclusive_group()
    speaker.add_argument("--seed", type=int, metavar="N", help="the voice of seed:N")
    speaker.add_argument("--speaker", metavar="STRING", help="a ChatTTS speaker string")
    parser.add_argument(
        "--from-wav",
        type=Path,
        metavar="FILE",
        help="5 to 10 s of speech to go on from; only with the speaker's consent",
    )
    parser.add_argument("--text", metavar="TRANSCRIPT", help="what is said in --from-wav")
    parser.add_argument("--description", default="", metavar="TEXT")
    parser.add_argument("--language", choices=LANGUAGES, default="any")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be repeated")
    _add_replace(parser)
    parser.set_defaults(run=run_add, parser=parser)


def _add_show(actions: Parsers) -> None:
    parser = _add_action(actions, "show", "print what is known of one voice")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run_show)


def _add_export(actions: Parsers) -> None:
    parser = _add_action(actions, "export", "write the ChatTTS speaker string of one voice")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="by default standard output")
    parser.set_defaults(run=run_export)


def _add_replace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replace", action="store_true", help="take the place of one of that name")


def _keep(entry: VoiceEntry, args: argparse.Namespace) -> None:
    # torch takes seconds to import, and the parser of every other command imports this file.
    from chattts_triton.voices.book import make_voice

    make_voice(entry, _statistics(args))  # what the server could not read is refused
    shipped = _shipped_entries(args)
    with editing(book_path(args.repository, args.model)) as entries:
        if entry.name in shipped | entries and not args.replace:
            raise InvalidRequestError(f"{entry.name}: is there already; --replace takes its place")
        entries[entry.name] = entry


def _prompt(args: argparse.Namespace) -> str:
    from chattts_triton.voices.prompt_codes import encode_prompt_codes
    from chattts_triton.voices.sample_audio import read_sample
    from chattts_triton.voices.sample_encoder import SampleEncoder

    audio = read_sample(args.from_wav)
    encoder = SampleEncoder(_preprocess_directory(args), threads=_ENCODER_THREADS)
    return encode_prompt_codes(encoder.encode(audio))


def _speaker_string(entry: VoiceEntry, args: argparse.Namespace) -> str:
    from chattts_triton.voices.book import speaker_vector
    from chattts_triton.voices.speaker import encode_speaker

    return entry.speaker or encode_speaker(speaker_vector(entry, _statistics(args)))


def _statistics(args: argparse.Namespace) -> SpeakerStatistics:
    from chattts_triton.voices.speaker import STATISTICS_FILE, SpeakerStatistics

    return SpeakerStatistics(_preprocess_directory(args) / STATISTICS_FILE)


def _preprocess_directory(args: argparse.Namespace) -> Path:
    manifest = load_manifest(args.repository, args.model)
    return manifest.member_directory(args.repository, PREPROCESS.name)


def _find(args: argparse.Namespace) -> VoiceEntry:
    entries = _entries(args)
    if args.name not in entries:
        known = ", ".join(entries) or "none"
        raise InvalidRequestError.of("NAME", args.name, f"one of: {known}")
    return entries[args.name]


def _entries(args: argparse.Namespace) -> Entries:
    """What the server knows: the voices of the checkpoint, and the operator's, whose names win."""
    return _shipped_entries(args) | read_entries(book_path(args.repository, args.model))


def _shipped_entries(args: argparse.Namespace) -> Entries:
    if not manifest_path(args.repository, args.model).is_file():
        return {}
    path = _preprocess_directory(args) / FILE_NAME
    return read_entries(path) if path.exists() else {}


def _facts(entry: VoiceEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "language": entry.language,
        "tags": list(entry.tags),
        "seed": entry.seed,
        "has_prompt": bool(entry.prompt),
        "text": entry.text,
    }


def _cells(entry: VoiceEntry) -> tuple[str, ...]:
    sample = "yes" if entry.prompt else ""
    return (entry.name, entry.source, entry.language, sample, entry.description)


def _sample_note(entry: VoiceEntry) -> str:
    return ", prompt from a sample" if entry.prompt else ""


def _width(text: str) -> int:
    """Columns of a terminal that a text takes; Han characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")
