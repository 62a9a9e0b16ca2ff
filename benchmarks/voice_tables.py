"""The report as Markdown, for docs/demo_voice.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def as_tables(result: dict[str, Any]) -> str:
    """All tables."""
    return "\n\n".join(
        [
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            rates(result["rows"]),
            differences(result["differences"]),
            pitches(result["pitch"]),
            speeds(result["speeds"]),
            seeds(result["seeds"]),
            breaks(result["breaks"]),
            sentences(result),
        ]
    )


def mandarin(result: dict[str, Any]) -> str:
    """What benchmarks/voice_mandarin.py found."""
    counts = result["texts"]
    rows = ([name, *map(percent, found.values())] for name, found in result["shares"].items())
    kinds = "|".join(f"{counts[kind]} {kind}" for kind in counts)
    return "\n\n".join(
        [
            f"`{result['command']}`, {result['date']}, {result['machine']}",
            table(f"speech|{kinds}", rows),
        ]
    )


def rates(rows: dict[str, Any]) -> str:
    return table(
        "speech|words|word errors|95 % interval|up to 12 words|13 to 20 words|duration / teacher's"
        "|not `stop`|cut|running on|RTF",
        (
            [
                name,
                row["words"],
                percent(row["rate"]),
                f"{percent(row['interval'][0])} to {percent(row['interval'][1])}",
                percent(row["short"]["rate"]),
                percent(row["long"]["rate"]),
                f"{row['duration_ratio']:.2f}",
                row["not_stop"],
                row["cut"],
                row["running_on"],
                f"{row['rtf']:.2f}" if "rtf" in row else "",
            ]
            for name, row in rows.items()
        ),
    )


def differences(found: dict[str, Any]) -> str:
    return table(
        "speech|against|points of word errors|up to 12 words|13 to 20 words",
        (
            [name, row["against"], *(points(row[kind]) for kind in ("all", "short", "long"))]
            for name, row in found.items()
        ),
    )


def pitches(found: dict[str, Any]) -> str:
    return table(
        "speech|mean F0 Hz|median F0 Hz|sentences on the side of their voice",
        (
            [
                name,
                f"{row['mean_hz']:.0f}",
                f"{row['median_hz']:.0f}",
                percent(row["told_apart"]),
            ]
            for name, row in found.items()
        ),
    )


def speeds(found: dict[str, Any]) -> str:
    return table(
        "speed|mean duration s|teacher's s|word errors",
        (
            [
                speed,
                f"{row['mean_s']:.2f}",
                f"{row['teacher_mean_s']:.2f}",
                percent(row["rate"]) if "rate" in row else "",
            ]
            for speed, row in found.items()
        ),
    )


def seeds(found: dict[str, Any]) -> str:
    return table(
        "seed|words|word errors|95 % interval",
        (
            [
                seed,
                row["words"],
                percent(row["rate"]),
                f"{percent(row['interval'][0])} to {percent(row['interval'][1])}",
            ]
            for seed, row in found.items()
        ),
    )


def breaks(found: dict[str, Any]) -> str:
    return table(
        "tag|sentences|longer by s|teacher's longer by s|sentences that are longer",
        (
            [
                f"`{tag}`",
                row["sentences"],
                f"{row['mean_longer_s']:.2f}",
                f"{row['teacher_mean_longer_s']:.2f}",
                percent(row["share_longer"]),
            ]
            for tag, row in found.items()
        ),
    )


def sentences(result: dict[str, Any]) -> str:
    spelled, refined = result["spelled"], result["refined"]
    return (
        f"Of {spelled['words']} words outside the vocabulary, heard among the 26 letters, "
        f"{percent(spelled['int8']['rate'])} of {spelled['int8']['words']} letters are wrong; the "
        f"teacher's {percent(spelled['teacher']['rate'])}.\n\n"
        f"Of {refined['texts']} texts a refinement gives {refined['copied_exactly']} back exactly."
    )


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the columns' heads are separated by bars."""
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{100 * row['points']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
