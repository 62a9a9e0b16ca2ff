"""Rare Han characters -> well known ones of the same sound.

The vocabulary of the released model holds 7,321 of the 20,902 ideographs of Unicode's first block;
any other would reach it as the unknown id, which it cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from chattts_triton.errors import ModelLoadError, shorten
from chattts_triton.text.characters import Kind, classify

HOMOPHONES_FILE = "homophones.json"  # in the directory of an export's `preprocess`


def load_homophones(path: Path) -> dict[str, str]:
    """Read the map that `export` wrote.

    Raises:
        ModelLoadError: The file is missing, or no JSON object of one Han character to one other.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: not an object of characters")
    for pair in content.items():
        if not all(_is_han(char) for char in pair):
            raise ModelLoadError(f"{path}: got {shorten(pair)}, wanted one Han character for one")
    return content


def resolve(homophones: Mapping[str, str]) -> dict[str, str]:
    """Follow every chain to its end, so that replacing twice is replacing once.

    Of a -> b -> c both become c. The characters of a circle stay as they are, and a chain that
    leads into one ends at the first of them that it meets.
    """
    resolved: dict[str, str] = {}
    for start in homophones:
        chain: dict[str, None] = {}
        char = start
        while char not in resolved and char in homophones and char not in chain:
            chain[char] = None
            char = homophones[char]
        if char in chain:
            circle = list(chain)[list(chain).index(char) :]
            resolved.update((member, member) for member in circle)
        for member in chain:
            resolved.setdefault(member, resolved.get(char, char))
    return resolved


def _is_han(char: object) -> bool:
    return isinstance(char, str) and len(char) == 1 and classify(char) == (Kind.HAN, char)
