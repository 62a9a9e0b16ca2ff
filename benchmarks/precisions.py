"""What 8 and 16 bits change against fp32, on the demonstration voice, by the same codes.

Fails where int8 is outside the bound within which it stays the default.
Usage: python benchmarks/precisions.py [--checkpoint DIR] [--texts N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import describe_machine

from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.export.compare import COMPARED, Comparison, as_table, compare_precisions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DEFAULT = "int8"


def as_markdown(result: dict[str, Any]) -> str:
    comparisons = [Comparison(**each) for each in result["comparisons"]]
    head = f"`{result['command']}`, {result['date']}, {result['machine']}"
    return f"{head}\n\n{as_table(comparisons)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "assets" / "demo_voice")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS / "precisions.json")
    args = parser.parse_args()
    use_one_torch_thread()
    comparisons = compare_precisions(
        args.checkpoint, COMPARED, num_texts=args.texts, max_steps=args.steps
    )
    result = {
        "command": f"python benchmarks/precisions.py --texts {args.texts} --steps {args.steps}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "comparisons": [each.to_json() for each in comparisons],
    }
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(as_markdown(result))
    (default,) = (each for each in comparisons if each.precision == DEFAULT)
    if default.faults:
        sys.exit(f"{DEFAULT} is outside its bound: {'; '.join(default.faults)}")


if __name__ == "__main__":
    main()
