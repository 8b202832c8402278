"""A rewrite engine that merges row by row, as the library did before it merged by columns. It is
the reference that `imap_wal.rewrite.local_engine` is compared with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from imap_wal.contents import open_checked
from imap_wal.entry import Row
from imap_wal.format import START
from imap_wal.parquet.columns import nodes_of, to_rows
from imap_wal.parquet.reader import Expected, batches
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, EntryBatch
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.part_writer import KeyRange, PartWriter
from imap_wal.rewrite.plan import Merged, Part, Result, RewritePlan, worth_reading
from imap_wal.rewrite.ranges import KeptPart, kept_parts, parts_of
from imap_wal.rewrite.tally import Tally
from imap_wal.segment.snapshot import is_segment, read_rows
from imap_wal.settings import Settings


class RowEngine:
    name = "rows"

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        index = NewestIndex(self._settings.restore_memory_bytes)
        try:
            return self._run(plan, log, index)
        finally:
            index.close()

    def _run(self, plan: RewritePlan, log: ClusterLog, index: NewestIndex) -> Result:
        tally, counting = Tally(plan), plan.decisions.counting

        def add(found: Iterable[EntryBatch], kind: str) -> None:
            for changes in found:
                if changes.rows:
                    tally.add(changes, count_bytes=kind == SEGMENT, settled=kind == "snapshot")
                    rows = counting(changes.node, changes.rows)
                    index.add(changes.node, rows, changes.bytes, clears=changes.clears)

        for scan in cluster_scans(plan.state, until=plan.until, maps=plan.maps, snapshots=False):
            # By the marks of each map, so that a wrong mark of all maps is noticed.
            add(log.read_on(replace(scan, complete=START), plan.maps), scan.kind)
        merged: list[Merged] = []
        touched = set(tally.maps)
        kept: dict[str, tuple[KeptPart, ...]] = {}
        for name, snapshot in sorted(plan.state.manifest.snapshots.items()):
            if not plan.wants(name):
                continue
            if name not in touched and not worth_reading(plan, snapshot, log.context):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            if not index.clears(name):
                kept[name] = kept_parts(
                    plan, parts_of(snapshot, log.context.keys), _keys(index, name), log.context
                )
            paths = {each.part.path for each in kept.get(name, ())}
            for scan in snapshot_scans(name, snapshot):
                if scan.path not in paths:
                    add(read_scan(log.context, scan), "snapshot")
            touched.add(name)
        for name in sorted(touched):
            with tempfile.TemporaryDirectory() as folder:
                writer = PartWriter(
                    log.context, plan, name, Path(folder), KeyRange(kept=kept.get(name, ()))
                )
                writer.add_clears(index.clears(name), tally.late)
                for rows, nodes, conflicts in index.batches_with_rivals(name):
                    writer.add(rows, nodes, tally.late, conflicts)
                writer.end()
                parts = writer.parts()
            totals = tally.maps.get(name)
            read = (totals.records, totals.bytes) if totals else (0, 0)
            merged.append(Merged(name, *read, parts))
        return Result(tuple(merged), tuple(tally.pairs.items()))


def _keys(index: NewestIndex, name: str) -> Iterator[list[bytes]]:
    for states in index.keys(name):
        yield [key for key, _, _ in states]


class ComparedEngine(LocalEngine):
    """The local engine; its result must be that of `RowEngine`."""

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        # Without other writers each reading of a log is the same.
        reference = replace(plan, generation=plan.generation + 1_000_000)
        expected = RowEngine(self._settings).run(reference, log)
        result = super().run(plan, log)
        compare(result, expected, log)
        return result


def compare(result: Result, expected: Result, log: ClusterLog, *, kept: bool = True) -> None:
    """The same entries and counts, from as many bytes or fewer: `RowEngine` does not use the mark
    of all maps, so it also reads what other engines need not read. `kept`: the same files are
    kept."""
    found, wanted = summary(result, log, kept), summary(expected, log, kept)
    for name in {*wanted, *found}:
        assert found.get(name) == wanted.get(name), name
    bytes_max = {item.map: item.read_bytes for item in expected.maps}
    for item in result.maps:
        assert item.read_bytes <= bytes_max[item.map], item.map


def summary(result: Result, log: ClusterLog, kept: bool) -> dict[str, object]:
    """What must not depend on the engine."""
    found: dict[str, object] = {"pairs": sorted(result.pairs)}
    for item in result.maps:
        parts = item.parts
        rows = [(row, node) for part in parts for row, node in _rows_of(part, log)]
        first = [part.first_expiry_ms for part in parts if part.first_expiry_ms]
        found[item.map] = (
            rows,
            (item.records if kept else 0, item.unchanged),
            sum(part.live for part in parts),
            sum(part.tombstones for part in parts),
            sum(part.conflicts for part in parts),
            any(part.clears for part in parts),
            min(first, default=0),
            min((part.last_expiry_ms for part in parts), default=0)
            and max(part.last_expiry_ms for part in parts),
            [part.path for part in parts if part.is_kept and kept],
        )
    return found


def _rows_of(part: Part, log: ClusterLog) -> Iterator[tuple[Row, str]]:
    if is_segment(part.path):
        with open_checked(log.store, part.path, part.checksum) as file:
            for frame in read_rows(file, part.path, log.context.keys):
                yield from zip(frame.rows, frame.nodes, strict=True)
        return
    for batch in batches(log.context, part.path, expected=Expected(part.checksum, part.rows)):
        yield from zip(to_rows(batch), nodes_of(batch), strict=True)
