"""The local rewrite engine: one process, by columns, with bounded memory.

    logs, then touched ranges of snapshots ─▶ keys and orders, without values   `Sources`
      ─▶ newest of each key                                                     `NewestKeys`
      ─▶ what is kept, in key order                                             `choice`
      ─▶ whole rows of the winners only                                         `RowSorter`
      ─▶ part files                                                             `PartWriter`

The logs are read before the snapshots. So the snapshot of an unchanged map is not read, and of a
changed map only the files whose key ranges have new entries (`imap_wal.rewrite.ranges`).
Segments, and files that are too small to gain by it, are read as rows and become columns then.
See docs/decisions/0044-a-rewrite-by-columns.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from imap_wal.entry import ORDER, PARTITION, subject
from imap_wal.errors import StorageUnavailable
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, EntryBatch, FileScan
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.read.view import MergeProgress
from imap_wal.rewrite.columns.choice import PICK_SCHEMA, decided, picks, without_cleared
from imap_wal.rewrite.columns.key_columns import KeyBatch, expiring, pairs_of, read_keys
from imap_wal.rewrite.columns.newest_keys import NewestKeys
from imap_wal.rewrite.columns.scratch import Scratch
from imap_wal.rewrite.columns.sources import Sources
from imap_wal.rewrite.columns.winners import RANKED_SCHEMA, RowSorter
from imap_wal.rewrite.part_writer import PartWriter
from imap_wal.rewrite.plan import Merged, Result, RewritePlan, Tally, worth_reading
from imap_wal.rewrite.ranges import KeptPart, kept_parts, parts_of
from imap_wal.settings import Settings
from storage_backends import NotFound, SegmentStore
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

PART_BYTES_MAX = 512 * 1024 * 1024
"""A column of what is held must be smaller than 2 GiB."""
COLUMN_ROWS, COLUMN_BYTES = 4096, 4 * 1024 * 1024
"""A Parquet file with so many rows, or bytes, is read by columns."""


class LocalEngine:
    """See the module. Memory: about `settings.restore_memory_bytes`, and about 100 MB more; the
    rest is written to `settings.scratch`."""

    name = "local"

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Callable[[MergeProgress], None] | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._progress = progress

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        try:
            with closing(_Merge(job, log, self._settings)) as merge:
                return self._run(merge, job, log)
        except OSError as error:  # from this machine: the store raises StorageErrors
            room = self._settings.scratch or tempfile.gettempdir()
            raise StorageUnavailable(
                f"rewriting needs space for Parquet files in {room}: {error}; nothing was published"
            ) from error

    def _run(self, merge: _Merge, job: RewritePlan, log: ClusterLog) -> Result:
        scans = cluster_scans(job.state, until=job.until, maps=job.maps, snapshots=False)
        total, done = sum(scan.bytes for scan in scans), 0
        for count, (scan, store) in enumerate(ahead(log.store, scans)):
            merge.read_log(scan, store)
            done += scan.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(scans), done, total, merge.records))
        merge.sources.flush()
        merged: list[Merged] = []
        tally = merge.tally
        touched = set(tally.maps)
        kept: dict[str, tuple[KeptPart, ...]] = {}
        for name, snapshot in sorted(job.state.manifest.snapshots.items()):
            if not job.wants(name):
                continue
            if name not in touched and not worth_reading(job, snapshot, log.store):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            if name not in merge.cleared:
                kept[name] = kept_parts(job, parts_of(snapshot), merge.keys.keys(name), log.store)
            paths = {each.part.path for each in kept.get(name, ())}
            for scan in snapshot_scans(name, snapshot):
                if scan.path not in paths:
                    merge.read_snapshot(scan)
            touched.add(name)
        merge.sources.flush()
        for name in sorted(touched):
            with tempfile.TemporaryDirectory(
                prefix="imap-wal-rewrite-", dir=self._settings.scratch, ignore_cleanup_errors=True
            ) as folder:
                writer = PartWriter(
                    log.store,
                    job,
                    name,
                    Path(folder),
                    randomness=log.randomness,
                    kept=kept.get(name, ()),
                )
                merge.write(name, writer)
                parts = writer.close()
            totals = tally.maps.get(name)
            merged.append(
                Merged(name, totals.records if totals else 0, totals.bytes if totals else 0, parts)
            )
        return Result(tuple(merged), tuple(tally.pairs.items()))


class _Merge:
    """One run of the engine: what was read so far."""

    def __init__(self, job: RewritePlan, log: ClusterLog, settings: Settings) -> None:
        self._job, self._log, self._folder = job, log, settings.scratch
        # Each of these needs several times its own limit while it works.
        self._part_bytes = min(max(settings.restore_memory_bytes // 10, 1), PART_BYTES_MAX)
        self.tally = Tally(job)
        self.cleared = Cleared()
        self.keys = NewestKeys(self._part_bytes, self._folder)
        self.sources = Sources(
            log.store, self.keys, self.tally.late, self._part_bytes, self._folder
        )
        self.records = 0
        self._noted = Noted()

    def read_log(self, scan: FileScan, store: SegmentStore) -> None:
        """Read one file of a log."""
        if scan.kind == ARCHIVE and _is_large(scan):
            try:
                self._read_columns(scan)
                return
            except NotFound:
                # An archive run absorbed it: its entries are elsewhere. Those that were read count
                # twice, which changes nothing.
                store = self._log.store
        for changes in self._log.read_on(scan, self._job.maps, store=store):
            self._add(changes, scan)

    def read_snapshot(self, scan: FileScan) -> None:
        """Read one file of a former snapshot."""
        if _is_large(scan):
            self._read_columns(scan)
            return
        for changes in read_scan(self._log.store, scan):
            self._add(changes, scan)

    def write(self, name: str, writer: PartWriter) -> None:
        """Write what is kept of a map."""
        writer.add_clears(self.cleared.claims(name), self.tally.late)
        with closing(RowSorter(self._part_bytes, self._folder)) as sorter:
            self._collect(name, sorter)
            for batch, losers, conflicts in decided(name, sorter.pages()):
                self._noted.note(conflicts)
                writer.count_conflicts(len(conflicts))
                writer.write(batch, losers)

    def close(self) -> None:
        self.keys.close()
        self.sources.close()

    def _add(self, changes: EntryBatch, scan: FileScan) -> None:
        """Add rows."""
        if not changes.rows:
            return
        settled = scan.kind == SNAPSHOT
        self.tally.add(changes, count_bytes=scan.kind == SEGMENT, settled=settled)
        self.records += len(changes.rows)
        rows = self._job.decisions.counting(changes.node, changes.rows)
        if changes.clears:
            rows = self.cleared.take(changes.node, rows)
        self.sources.add_rows(rows, changes.node, changes.bytes)

    def _read_columns(self, scan: FileScan) -> None:
        source = self.sources.file(scan)
        for found in read_keys(self.sources.store, scan):
            late = scan.kind != SNAPSHOT and self.tally.is_late(scan.node, found.last)
            self._count(scan, found, late)
            self.records += found.records
            for row, node in found.clears:
                self.cleared.take(node or scan.node, [row])
            batch = found.batch
            if len(batch):
                self.sources.add_columns(source, self._counting(batch, scan), late)

    def _count(self, scan: FileScan, found: KeyBatch, late: bool) -> None:
        """As `Tally.add` does with rows."""
        if found.records:
            self.tally.count(scan.map, found.records)
        if late:
            self.tally.late.update(subject(row) for row, _ in found.clears)
            return
        batch = found.batch
        self.tally.learn(
            lambda: {
                *pairs_of(batch if scan.kind == ARCHIVE else batch.filter(expiring(batch))),
                *((row[PARTITION], *row[ORDER][:2]) for row, _ in found.clears),
            }
        )

    def _counting(self, batch: Any, scan: FileScan) -> Any:
        """`Decisions.counting` for columns."""
        decisions = {
            key: decision
            for (name, key), decision in self._job.decisions.winners.items()
            if name == scan.map
        }
        if not decisions:
            return batch
        keys = batch.column("key")
        places = pc.indices_nonzero(
            pc.is_in(keys, value_set=pa.array(list(decisions), pa.binary()))
        )
        lost = set()
        for place in places.to_pylist():
            pair, winner = decisions[keys[place].as_py()]
            own = tuple(
                batch.column(name)[place].as_py() for name in ("incarnation", "partition_version")
            )
            node = scan.node if scan.kind == ARCHIVE else batch.column("node")[place].as_py()
            if own == pair and node != winner:
                lost.add(place)
        return batch.filter(
            pa.array([place not in lost for place in range(len(batch))], pa.bool_())
        )

    def _collect(self, name: str, sorter: RowSorter) -> None:
        """Read the whole rows of the winners of a map."""
        rank = 0
        with closing(Scratch(PICK_SCHEMA, self._part_bytes, self._folder)) as wanted:
            for contenders in self.keys.ranges(name):
                table = without_cleared(contenders, name, self.cleared)
                found = picks(table, self._job.rule, self.sources.nodes, rank)
                rank += found.num_rows
                for source, batch in _by_source(found):
                    wanted.add(source, batch)
            for source in sorted(wanted.tags()):
                for batch in self._rows(source, list(wanted.taken(source))):
                    sorter.add(batch)

    def _rows(self, source: int, picked: list[Any]) -> Iterator[Any]:
        """The whole rows that were picked of a source, with `RANKED_SCHEMA`."""
        table = pa.Table.from_batches(picked, PICK_SCHEMA)
        if len(picked) > 1:
            table = table.sort_by("row")
        table = table.combine_chunks()
        at = 0
        for batch in self.sources.rows(source, table["row"].combine_chunks()):
            own = table.slice(at, len(batch))
            at += len(batch)
            extra = [own[each].combine_chunks() for each in ("rank", "claimed", "dropped")]
            yield pa.record_batch([*batch.columns, *extra], schema=RANKED_SCHEMA)


def _by_source(found: Any) -> Iterator[tuple[int, Any]]:
    """Picks, which are sorted by source, one source at a time."""
    start = 0
    for each in pc.value_counts(found["source"]):
        count = each["counts"].as_py()
        for batch in found.slice(start, count).combine_chunks().to_batches():
            yield each["values"].as_py(), batch
        start += count


def _is_large(scan: FileScan) -> bool:
    return scan.records >= COLUMN_ROWS or (scan.records > 0 and scan.bytes >= COLUMN_BYTES)
