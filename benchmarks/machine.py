"""One line that says what a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_machine() -> str:
    """Processor, usable cores, memory and Python version."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if "model name" in line]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.machine()
    return (
        f"{processor}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, "
        f"Python {platform.python_version()}"
    )
