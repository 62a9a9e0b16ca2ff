"""What the text front end costs: a plain sentence, each figure in it, and growth with length.

Usage: python benchmarks/text.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe_machine
from tqdm import tqdm

from chattts_triton.export.upstream import homophones_map
from chattts_triton.text.normalizer import TextNormalizer

RESULT = Path(__file__).parent / "results" / "text.json"
SENTENCES = {
    "zh": "今天天气真的很好，我们打算一起去公园里散步，然后在湖边的小店喝一杯热茶，"
    "晚上再回家看一部好电影，你要不要和我们一起去呢？",
    "en": "The weather is really nice today, so we are going for a walk.",
}
# `{}` is a fresh number each time, so that no answer of wetext is remembered.
FIGURES = {
    "zh": ["，有{}个", "，{}元", "，第{}名", "，${}.5", "，{}公里"],
    "en": [", {} apples", ", ${}", ", {} km", ", the {}th", ", {}.5 points"],
}
REPEATED = {
    "plain zh": SENTENCES["zh"],
    "plain en": SENTENCES["en"],
    "figures zh": "有3个苹果，",
    "figures en": "I have 3 apples, ",
    "no marks": "好",
    "one word": "a",
    "digits": "7",
    "dots": "1.",
    "slashes": "1/",
    "hyphens": "a-",
    "addresses": "a@",
    "open brackets": "[",
    "half tags": "[laugh",
    "tags": "[laugh]",
}
LENGTHS = (1_250, 2_500, 5_000, 10_000)
MAX_PLAIN_MS = 2.0
MAX_FIGURE_MS = 3.0
MAX_GROWTH = 3.0  # of twice the text; 2 is linear, 4 quadratic


def median_ms(call: Callable[[int], object], rounds: int) -> float:
    times = []
    for index in range(rounds):
        start = time.perf_counter()
        call(index)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def best_ms(normalizer: TextNormalizer, text: str, rounds: int) -> float:
    """The fastest of a few: what the work takes when the machine does nothing else."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        normalizer.normalize(text)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def measure_figures(normalizer: TextNormalizer, rounds: int) -> dict[str, Any]:
    result = {}
    for language, sentence in SENTENCES.items():
        plain_ms = median_ms(lambda _, text=sentence: normalizer.normalize(text), rounds)
        templates = FIGURES[language]

        def call(index: int, count: int, text: str, parts: list[str]) -> object:
            figures = [
                part.format(1000 + index * 17 + part_index * 997)
                for part_index, part in enumerate(parts[:count])
            ]
            return normalizer.normalize(text + "".join(figures))

        totals = {
            count: median_ms(
                lambda index, n=count, t=sentence, p=templates: call(index * 7 + n, n, t, p), rounds
            )
            for count in (1, 5)
        }
        result[language] = {
            "characters": len(sentence),
            "plain_ms": plain_ms,
            "one_figure_ms": totals[1] - plain_ms,
            "per_figure_of_five_ms": (totals[5] - plain_ms) / 5,
        }
    return result


def measure_growth(normalizer: TextNormalizer) -> dict[str, Any]:
    result = {}
    for name, unit in tqdm(REPEATED.items(), desc="growth", file=sys.stderr):
        times = [
            best_ms(normalizer, ("好" + unit * length)[:length], rounds=5) for length in LENGTHS
        ]
        result[name] = {"ms": dict(zip(map(str, LENGTHS), times, strict=True))}
        result[name]["growth"] = times[-1] / times[-2]
    return result


def as_table(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        f"load: {result['load_s']:.2f} s, {result['load_mb']:.0f} MB",
        "",
        "| language | characters | plain ms | + 1 figure ms | + each of 5 ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for language, row in result["sentences"].items():
        lines.append(
            f"| {language} | {row['characters']} | {row['plain_ms']:.2f} "
            f"| {row['one_figure_ms']:.2f} | {row['per_figure_of_five_ms']:.2f} |"
        )
    lengths = " | ".join(f"{length} ms" for length in LENGTHS)
    lines += ["", f"| text | {lengths} | twice the text |", "| --- " * (len(LENGTHS) + 2) + "|"]
    for name, row in result["growth"].items():
        times = " | ".join(f"{ms:.1f}" for ms in row["ms"].values())
        lines.append(f"| {name} | {times} | x{row['growth']:.1f} |")
    return "\n".join(lines)


def failures(result: dict[str, Any]) -> list[str]:
    found = []
    for language, row in result["sentences"].items():
        if row["plain_ms"] > MAX_PLAIN_MS:
            found.append(f"{language}: a plain sentence over {MAX_PLAIN_MS} ms")
        if max(row["one_figure_ms"], row["per_figure_of_five_ms"]) > MAX_FIGURE_MS:
            found.append(f"{language}: a figure over {MAX_FIGURE_MS} ms")
    for name, row in result["growth"].items():
        if row["growth"] > MAX_GROWTH:
            found.append(f"{name}: twice the text takes {row['growth']:.1f} times as long")
    return found


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    args = parser.parse_args()
    before_mb, start = resident_mb(), time.perf_counter()
    homophones = homophones_map()
    normalizer = TextNormalizer(homophones, max_characters=max(LENGTHS))
    result = {
        "command": f"python benchmarks/text.py --rounds {args.rounds}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "load_s": time.perf_counter() - start,
        "load_mb": resident_mb() - before_mb,
        "sentences": measure_figures(normalizer, args.rounds),
        "growth": measure_growth(normalizer),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_table(result))
    missed = failures(result)
    for failure in missed:
        print(f"missed: {failure}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
