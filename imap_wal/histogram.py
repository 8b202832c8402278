"""Counts of measured values by their size, as a metric of type histogram needs them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One of the values, and the id of the trace of its work. `at_s`: Unix time."""

    trace_id: str
    value: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """A snapshot. `counts[i]`: how many values are at most `bounds[i]`, and above the bound before
    it; the last count is of values above all bounds. `sum`: of all values. `exemplars`: by the
    index in `counts`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)


class Histogram:
    """One thread at a time calls `add`; any thread may call `snapshot`. Its sum may then lack a
    value that its counts have, or the reverse, until the next snapshot."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the ranges, in increasing order."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._exemplars: Mapping[int, Exemplar] = {}

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def exemplify(self, exemplar: Exemplar) -> None:
        """Keep this exemplar instead of the former one of its range. For the thread that calls
        `add`."""
        index = bisect_left(self._bounds, exemplar.value)
        self._exemplars = {**self._exemplars, index: exemplar}

    def snapshot(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._sum, self._exemplars)
