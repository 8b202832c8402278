"""What a rewrite counts while it merges: entries and bytes of each map, tombstones that came late,
and the partition versions that it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from imap_wal.entry import ORDER, PARTITION, Row, subject
from imap_wal.format import START, Position
from imap_wal.read.file_scan import EntryBatch
from imap_wal.rewrite.plan import MergeRules
from imap_wal.rules.dropped import may_be_dropped

Subject: TypeAlias = tuple[str, bytes | tuple[int, int]]
"""A key of a map, or one of its partitions (`imap_wal.entry.subject`)."""


@dataclass(slots=True)
class Totals:
    """Counts of what was read of one map."""

    records: int = 0
    bytes: int = 0


class Tally:
    """Counts the entries of a merge. It also records the tombstones above `settled`, and the
    highest pair of each partition at or below it."""

    def __init__(self, plan: MergeRules) -> None:
        self._settled, self.pairs_wanted = plan.settled, plan.versions is not None
        self.maps: dict[str, Totals] = {}
        self.late: set[Subject] = set()
        self.pairs: dict[int, tuple[int, int]] = {}

    def add(self, changes: EntryBatch, *, count_bytes: bool, settled: bool = False) -> None:
        """Add a batch. `settled`: it comes from a snapshot."""
        rows = changes.rows
        counts = Counter(map(itemgetter(0), rows))
        for name, count in counts.items():
            totals = self.maps.setdefault(name, Totals())
            totals.records += count
            if count_bytes:
                totals.bytes += changes.bytes * count // len(rows)
        if settled:
            # A tombstone that an earlier rewrite kept may be dropped now, and no log has its pair
            # any more.
            self._learn([row for row in rows if may_be_dropped(row)])
        elif self.is_late(changes.node, changes.last):
            self.late.update(subject(row) for row in rows if may_be_dropped(row))
        else:
            self._learn(rows)

    def is_late(self, node: str, last: Position) -> bool:
        """Whether entries of a node up to `last` may have been appended after the first look."""
        return last > self._settled.get(node, START)

    def count(self, name: str, records: int) -> None:
        """Add entries of one map that were read by columns."""
        self.maps.setdefault(name, Totals()).records += records

    def learn(self, pairs_of: Callable[[], Iterable[tuple[int, int, int]]]) -> None:
        """Record pairs, as (partition, incarnation, version), of entries at or below `settled`.
        `pairs_of` is called only if they are wanted."""
        if self.pairs_wanted:
            raise_pairs(self.pairs, pairs_of())

    def _learn(self, rows: Iterable[Row]) -> None:
        """Record the pairs of rows at or below `settled`."""
        if self.pairs_wanted:
            raise_versions(self.pairs, rows)


def raise_versions(pairs: dict[int, tuple[int, int]], rows: Iterable[Row]) -> None:
    raise_pairs(pairs, {(row[PARTITION], row[ORDER][0], row[ORDER][1]) for row in rows})


def raise_pairs(
    pairs: dict[int, tuple[int, int]], claimed_pairs: Iterable[tuple[int, int, int]]
) -> None:
    for partition, incarnation, version in claimed_pairs:
        if pairs.get(partition, (-1, -1)) < (incarnation, version):
            pairs[partition] = incarnation, version
