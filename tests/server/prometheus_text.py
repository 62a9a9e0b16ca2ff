"""A strict reader of Prometheus' text format, as far as Triton and this project use it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]  # sorted by name

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_VALUE = r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? ({_VALUE})")
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass
class Family:
    """A metric: its series by the name of the sample and its labels."""

    name: str
    help_text: str
    kind: str = ""
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def check_histograms(self) -> None:
        """The buckets of each series grow, the last one holds everything."""
        counts = {
            labels: n for (name, labels), n in self.samples.items() if name.endswith("_count")
        }
        assert counts, self.name
        for labels, count in counts.items():
            assert (f"{self.name}_sum", labels) in self.samples
            buckets = [
                (float(dict(with_bound)["le"]), number)
                for (name, with_bound), number in self.samples.items()
                if name.endswith("_bucket") and without_bound(with_bound) == labels
            ]
            assert buckets == sorted(buckets), self.name
            assert [number for _, number in buckets] == sorted(number for _, number in buckets)
            assert buckets[-1] == (float("inf"), count), self.name


def without_bound(labels: Labels) -> Labels:
    return tuple(label for label in labels if label[0] != "le")


def parse(text: str, prefix: str) -> dict[str, Family]:
    """The families whose name begins with `prefix`; anything malformed in them is an error."""
    families: dict[str, Family] = {}
    current: Family | None = None
    for line in text.split("\n"):
        comment = _COMMENT.fullmatch(line)
        if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(prefix):
            current = None
        elif comment and comment[1] == "HELP":
            assert comment[2] not in families, f"a second family {line!r}"
            current = families[comment[2]] = Family(comment[2], comment[3])
        elif comment:
            assert current, f"no help before {line!r}"
            assert (current.name, current.kind) == (comment[2], ""), line
            current.kind = comment[3]
        else:
            assert current, f"no family around {line!r}"
            _add_sample(current, line)
    for family in families.values():
        assert family.samples, f"{family.name} is empty"
        if family.kind == "histogram":
            family.check_histograms()
    return families


def _add_sample(family: Family, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    assert match, f"malformed: {line!r}"
    name, inner, value = match.groups()
    allowed = [f"{family.name}{s}" for s in _SUFFIXES] if family.kind == "histogram" else []
    assert name in (allowed or [family.name]), f"{name} is not of the {family.kind} {family.name}"
    pairs = [pair.split("=", 1) for pair in re.findall(_LABEL, inner or "")]
    labels = tuple(sorted((key, quoted[1:-1]) for key, quoted in pairs))
    assert len(dict(labels)) == len(labels), f"a label twice: {line!r}"
    assert (name, labels) not in family.samples, f"a series twice: {line!r}"
    family.samples[name, labels] = float(value)
