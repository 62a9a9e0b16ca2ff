"""OpenAI's factor of speed as one of ChatTTS's ten speeds."""

from __future__ import annotations

from bisect import bisect_right

MIN_FACTOR = 0.25
MAX_FACTOR = 4.0
DEFAULT_FACTOR = 1.0

# `LOWER_BOUNDS[n]` is the least factor that means speed n. ChatTTS has no measure of its speeds, so
# the steps are even in the ear's way, by ratio, and 1.0 is the default 5.
LOWER_BOUNDS = (0.25, 0.4, 0.5, 0.65, 0.8, 0.95, 1.1, 1.35, 1.75, 2.5)


def chattts_speed(factor: float) -> int:
    """0 (slow) to 9 (fast).

    Args:
        factor: 0.25 to 4.0.
    """
    return bisect_right(LOWER_BOUNDS, factor) - 1
