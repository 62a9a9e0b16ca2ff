"""`python -m training`: the first stage of the demonstration voice, its English.

`python -m training.mandarin` is the second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from training.recipe import FULL, SMOKE, run


def main() -> None:
    """Run every stage that is not complete yet."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of each stage; the voice only babbles"
    )
    parser.add_argument("--work", type=Path, default=Path("build/training"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("build/training/voice"), metavar="DIR")
    args = parser.parse_args()
    run(SMOKE if args.smoke else FULL, args.work, args.out)


if __name__ == "__main__":
    main()
