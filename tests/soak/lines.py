"""What is recorded of a long run, and whether it stays flat."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

QUARTER = 4
"""The second quarter of a line is compared with the last one: in the first, a process warms up."""
POINTS_MIN = 12


@dataclass(frozen=True, slots=True)
class Quantity:
    """Flat: the later value is at most `factor` times the earlier one plus `more`. `scale`: of a
    number on a picture."""

    name: str
    title: str
    unit: str
    factor: float
    more: float
    scale: float = 1.0


QUANTITIES = {
    each.name: each
    for each in (
        Quantity("memory", "memory of each process", "MiB", 1.25, 32 << 20, 1 << 20),
        Quantity("files", "open files of each process", "", 1.0, 16),
        Quantity("threads", "threads of each process", "", 1.0, 16),
        Quantity("disk", "files of the log", "MiB", 1.5, 16 << 20, 1 << 20),
        Quantity("p99", "99 of 100 changes were acknowledged within", "ms", 3.0, 30),
    )
}


@dataclass(slots=True)
class Line:
    """One quantity of one life of a process: (seconds since the beginning, value)."""

    quantity: str
    name: str
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.points[-1][0] - self.points[0][0] if self.points else 0.0

    def as_json(self) -> dict[str, Any]:
        return {"quantity": self.quantity, "name": self.name, "points": self.points}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Line:
        points = [(float(at), float(value)) for at, value in found["points"]]
        return cls(found["quantity"], found["name"], points)


@dataclass(frozen=True, slots=True)
class Drift:
    """A line that grew. `before`, `after`: the medians of its second and of its last quarter."""

    quantity: str
    name: str
    before: float
    after: float

    def __str__(self) -> str:
        of = QUANTITIES[self.quantity]
        before, after = self.before / of.scale, self.after / of.scale
        return f"{self.name}: {of.title}: from {before:,.1f} to {after:,.1f} {of.unit}".rstrip()


def quarters(line: Line) -> tuple[float, float] | None:
    """The medians of the second and of the last quarter; None: the line is too short."""
    values = [value for _, value in line.points]
    part = len(values) // QUARTER
    if len(values) < POINTS_MIN:
        return None
    return statistics.median(values[part : 2 * part]), statistics.median(values[-part:])


def drifts(lines: Iterable[Line], least_s: float) -> list[Drift]:
    """The lines of at least `least_s` seconds that are not flat."""
    found = []
    for line in lines:
        of, both = QUANTITIES[line.quantity], quarters(line)
        if both is None or line.seconds < least_s:
            continue
        before, after = both
        if after > before * of.factor + of.more:
            found.append(Drift(line.quantity, line.name, before, after))
    return found


def judged(lines: Sequence[Line], least_s: float) -> int:
    """How many lines `drifts` can judge."""
    return sum(quarters(line) is not None and line.seconds >= least_s for line in lines)
