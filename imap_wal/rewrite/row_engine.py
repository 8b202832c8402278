"""The rewrite engine of an install without pyarrow: row by row, into segment snapshots
(`imap_wal.segment.snapshot`). Also that of tiny logs, where loading pyarrow would take longer.

    logs, then snapshots of changed maps ─▶ `NewestIndex` ─▶ part files, in key order

A changed map is written as a whole: a compaction by itself runs when the log has grown by about the
size of its snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, is_clear, subject
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import EntryBatch, FileScan
from imap_wal.read.merge import MergeProgress
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted, RivalClaims
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.rewrite.plan import Merged, Part, Result, RewritePlan, former_to_read, rewrite_folder
from imap_wal.rewrite.publish import latest_expiry
from imap_wal.rewrite.tally import Tally, Totals
from imap_wal.rules.dropped import may_be_dropped
from imap_wal.rules.newer import Claim
from imap_wal.segment.snapshot import SUFFIX, SnapshotWriter
from imap_wal.settings import Settings

PART_BYTES = 64 * 1024 * 1024
"""A part file ends after a page of the index when it has this size: a reader of an object store
reads it as a whole."""


class RowEngine:
    """Memory: about `settings.restore_memory_bytes`; the rest is written to `settings.scratch`.
    `run` raises the errors of reading the log, and OSError if the local folder fails."""

    name = "rows"

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Callable[[MergeProgress], None] | None = None,
    ) -> None:
        self._settings, self._progress = settings or Settings(), progress

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        settings = self._settings
        with (
            closing(NewestIndex(settings.restore_memory_bytes, settings.scratch)) as index,
            rewrite_folder(settings.scratch) as folder,
        ):
            return _Merge(plan, log, index, Path(folder), self._progress).run()


class _Merge:
    """One run of the engine."""

    def __init__(
        self,
        plan: RewritePlan,
        log: ClusterLog,
        index: NewestIndex,
        folder: Path,
        progress: Callable[[MergeProgress], None] | None,
    ) -> None:
        self._plan, self._log, self._index, self._folder = plan, log, index, folder
        self._progress = progress
        self._tally, self._noted = Tally(plan), Noted()

    def run(self) -> Result:
        plan, log = self._plan, self._log
        scans = plan.log_scans()
        total, done = sum(scan.bytes for scan in scans), 0
        for count, (scan, context) in enumerate(ahead(log.context, scans), 1):
            self._add(scan, log.read_on(scan, plan.maps, context=context))
            done += scan.bytes
            if self._progress is not None:
                records = sum(totals.records for totals in self._tally.maps.values())
                self._progress(MergeProgress(count, len(scans), done, total, records))
        touched = set(self._tally.maps)
        former, merged = former_to_read(plan, touched, log.context, by_rows=True)
        for name, snapshot in former:
            for scan in snapshot_scans(name, snapshot):
                self._add(scan, read_scan(log.context, scan))
            touched.add(name)
        for name in sorted(touched):
            parts = tuple(self._parts(name))
            totals = self._tally.maps.get(name, Totals())
            merged.append(Merged(name, totals.records, totals.bytes, parts))
        return Result(tuple(merged), tuple(self._tally.pairs.items()))

    def _add(self, scan: FileScan, batches: Iterable[EntryBatch]) -> None:
        for changes in batches:
            if changes.rows:
                self._tally.add(changes, count_bytes=not scan.map, settled=scan.kind == "snapshot")
                rows = self._plan.decisions.counting(changes.node, changes.rows)
                self._index.add(changes.node, rows, changes.bytes, clears=changes.clears)

    def _parts(self, name: str) -> Iterator[Part]:
        """Write the rows of a map that are kept."""
        part: _PartFile | None = None
        number = 0
        for claims, conflicts in self._kept(name):
            if part is None:
                part = _PartFile(self._plan, self._log, name, number, self._folder)
            part.add(claims, conflicts)
            if part.file.size >= PART_BYTES:
                yield part.end()
                part, number = None, number + 1
        if part is not None:
            yield part.end()

    def _kept(self, name: str) -> Iterator[tuple[list[Claim], Mapping[bytes, RivalClaims]]]:
        """The claims that are kept, in key order: first the clears, which have no key; then pages
        of rows, with all claims of the keys in conflict."""
        if clears := self._without_dropped(self._index.clears(name)):
            yield clears, {}
        for rows, nodes, conflicts in self._index.batches_with_rivals(name):
            self._noted.note(conflicts.values())
            claims: list[Claim] = []
            for claim in self._without_dropped(zip(rows, nodes, strict=True), conflicts):
                conflict = conflicts.get(claim[0][KEY])
                claims += [claim] if conflict is None else conflict.claims
            if claims:
                yield claims, conflicts

    def _without_dropped(
        self, claims: Iterable[Claim], conflicts: Mapping[bytes, RivalClaims] | None = None
    ) -> list[Claim]:
        rule, late = self._plan.rule, self._tally.late
        return [
            (row, node)
            for row, node in claims
            if not may_be_dropped(row)
            or (conflicts and row[KEY] in conflicts)
            or not rule.drops(row, node, bool(late) and subject(row) in late)
        ]


class _PartFile:
    """One part file under way."""

    def __init__(
        self, plan: RewritePlan, log: ClusterLog, name: str, number: int, folder: Path
    ) -> None:
        context = log.context
        self._plan, self._store, self._number = plan, context.store, number
        self._path = plan.part_path(name, 0, number, context.randomness.name(), SUFFIX)
        self.file = SnapshotWriter(
            folder,
            self._path,
            context.clock.now_ms(),
            context.keys.key_ring,
            context.randomness,
        )
        self._tombstones = self._conflicts = self._first_expiry_ms = 0
        self._last_expiry_ms: list[int] = []
        self._clears = False

    def add(self, claims: Sequence[Claim], conflicts: Mapping[bytes, RivalClaims]) -> None:
        rows = [row for row, _ in claims]
        self.file.add(rows, [node for _, node in claims])
        losers = {id(row) for conflict in conflicts.values() for row, _ in conflict.claims[1:]}
        self._tombstones += sum(row[DELETED] or id(row) in losers for row in rows)
        self._conflicts += len(conflicts)
        clears = is_clear(rows[0])
        self._clears |= clears
        expiries = [0 if clears else row[EXPIRES_AT_MS] for row in rows]
        self._last_expiry_ms = [latest_expiry((*self._last_expiry_ms, *expiries))]
        some = [expiry for expiry in (self._first_expiry_ms, *expiries) if expiry]
        self._first_expiry_ms = min(some, default=0)

    def end(self) -> Part:
        """Publish it."""
        dry_run = self._plan.dry_run
        published = self.file.discard() if dry_run else self.file.publish(self._store)
        return Part(
            self._path,
            self.file.records - self._tombstones,
            self._tombstones,
            published.bytes,
            published.checksum,
            number=self._number,
            last_expiry_ms=latest_expiry(self._last_expiry_ms),
            conflicts=self._conflicts,
            clears=self._clears,
            first_expiry_ms=self._first_expiry_ms,
        )
