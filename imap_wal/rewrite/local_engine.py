"""The local rewrite engine: one pass over the logs into a NewestIndex with bounded memory, then
sorted part files.

The logs are read before the snapshots. So the snapshot of an unchanged map is not read, and of a
changed map only the files whose key ranges have new entries (`imap_wal.rewrite.ranges`).
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from imap_wal.clock import Randomness, SystemRandomness
from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, VALUE, Row, is_clear, subject
from imap_wal.errors import StorageUnavailable
from imap_wal.parquet.file import GROUP_BYTES_MAX, SNAPSHOT_SCHEMA, ParquetFile, to_batch
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Claim, Conflict, Noted
from imap_wal.read.newest.table import in_pages
from imap_wal.read.scan import ahead, read_scan
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.read.view import MergeProgress
from imap_wal.rewrite.plan import (
    DROP,
    Merged,
    Part,
    Result,
    RewritePlan,
    Subject,
    Tally,
    worth_reading,
)
from imap_wal.rewrite.publish import latest_expiry
from imap_wal.rewrite.ranges import KeptPart, kept_parts, parts_of, separator
from imap_wal.security.encryption import keys_of
from imap_wal.settings import Settings
from storage_backends import SegmentStore

NO_CONFLICTS: Mapping[bytes, Conflict] = {}
PART_ROWS, PART_BYTES = 65_536, 16 * 1024 * 1024
PART_ROWS_MAX, PART_BYTES_MAX = 1_000_000, 256 * 1024 * 1024
PARTS_OF_A_SIZE = 64
"""A part file ends at this number of rows, or of bytes in memory. Both limits double after each
`PARTS_OF_A_SIZE` parts of a map. So a small change of a small map writes little, and a large map
does not have too many files."""


class LocalEngine:
    """Executes a plan in this process. Memory: `settings.restore_memory_bytes` for the index, and
    about 100 MB more; other data is written to `settings.scratch`."""

    name = "local"

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Callable[[MergeProgress], None] | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._progress = progress

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        index = NewestIndex(self._settings.restore_memory_bytes, self._settings.scratch)
        try:
            return self._run(job, log, index)
        except OSError as error:  # from this machine: the store raises StorageErrors
            room = self._settings.scratch or tempfile.gettempdir()
            raise StorageUnavailable(
                f"rewriting needs space for Parquet files in {room}: {error}; nothing was published"
            ) from error
        finally:
            index.close()

    def _run(self, job: RewritePlan, log: ClusterLog, index: NewestIndex) -> Result:
        tally, counting = Tally(job), job.decisions.counting
        scans = cluster_scans(job.state, until=job.until, maps=job.maps, snapshots=False)
        total, done, records = sum(scan.bytes for scan in scans), 0, 0
        for count, (scan, store) in enumerate(ahead(log.store, scans)):
            for changes in log.read_on(scan, job.maps, store=store):
                if changes.rows:
                    tally.add(changes, count_bytes=scan.kind == SEGMENT)
                    index.add(
                        changes.node,
                        counting(changes.node, changes.rows),
                        changes.bytes,
                        clears=changes.clears,
                    )
                    records += len(changes.rows)
            done += scan.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(scans), done, total, records))
        merged: list[Merged] = []
        noted = Noted()
        touched = set(tally.maps)
        kept: dict[str, tuple[KeptPart, ...]] = {}
        for name, snapshot in sorted(job.state.manifest.snapshots.items()):
            if not job.wants(name):
                continue
            if name not in touched and not worth_reading(job, snapshot, log.store):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            if not index.clears(name):
                kept[name] = kept_parts(job, parts_of(snapshot), _keys(index, name), log.store)
            paths = {each.part.path for each in kept.get(name, ())}
            for scan in snapshot_scans(name, snapshot):
                if scan.path in paths:
                    continue
                for changes in read_scan(log.store, scan):
                    tally.add(changes, count_bytes=False, settled=True)
                    index.add(
                        changes.node,
                        counting(changes.node, changes.rows),
                        changes.bytes,
                        clears=changes.clears,
                    )
            touched.add(name)
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
                writer.add_clears(index.clears(name), tally.late)
                for rows, nodes, conflicts in index.batches_with_rivals(name):
                    noted.note(conflicts.values())
                    writer.add(rows, nodes, tally.late, conflicts)
                parts = writer.close()
            totals = tally.maps.get(name)
            merged.append(
                Merged(name, totals.records if totals else 0, totals.bytes if totals else 0, parts)
            )
        return Result(tuple(merged), tuple(tally.pairs.items()))


def _keys(index: NewestIndex, name: str) -> Iterator[list[bytes]]:
    for states in index.keys(name):
        yield [key for key, _, _ in states]


class PartWriter:
    """Writes the rows of one map that are kept as part files, in key order. In a dry run it only
    measures their size. `partition`: the number of the key range. `kept`: former files that become
    parts as they are, in key order; no added row is in their ranges. Every file has a unique name,
    so that another attempt at the same work cannot replace it. No file is replaced or deleted
    here."""

    def __init__(
        self,
        store: SegmentStore,
        job: RewritePlan,
        name: str,
        folder: Path,
        partition: int = 0,
        randomness: Randomness | None = None,
        kept: Sequence[KeptPart] = (),
    ) -> None:
        self._store, self._job, self._name, self._folder, self._partition = (
            store,
            job,
            name,
            folder,
            partition,
        )
        self._randomness = randomness or SystemRandomness()
        self._file: ParquetFile | None = None
        self._rows = self._bytes = self._conflicts = 0
        self._clears = False
        self._expiry_ms: list[int] = []
        self._first_expiry_ms = 0
        self._parts: list[Part] = []
        self._kept = deque(kept)
        self._lower: bytes | None = b""
        """The lower border of the current file, or of the next one."""
        self._last = b""
        """The last key that was written."""

    def add_clears(self, claims: Sequence[Claim], late: set[Subject]) -> None:
        """Add the newest clears. Must be called before `add`."""
        if claims:
            self.add([row for row, _ in claims], [node for _, node in claims], late)

    def add(
        self,
        rows: list[Row],
        nodes: list[str],
        late: set[Subject],
        conflicts: Mapping[bytes, Conflict] = NO_CONFLICTS,
    ) -> None:
        """Add the newest rows of the next keys, and the nodes that wrote them. For keys in
        `conflicts`, all claims are kept."""
        decide = self._job.rule.decide
        claims = list(zip(rows, nodes, strict=True))
        dead = [row[DELETED] or row[EXPIRES_AT_MS] for row in rows]
        if any(dead):
            claims = [
                (row, node)
                for (row, node), maybe in zip(claims, dead, strict=True)
                if not maybe
                or row[KEY] in conflicts
                or decide(row, node, bool(late) and subject(row) in late) != DROP
            ]
        if conflicts:
            claims = [
                each
                for row, node in claims
                for each in (
                    conflicts[row[KEY]].claims if row[KEY] in conflicts else ((row, node),)
                )
            ]
            self._conflicts += len(conflicts)
        losers = {id(row) for each in conflicts.values() for row, _ in each.claims[1:]}
        # Split by bytes: a column of a batch must be smaller than 2 GiB.
        for page in in_pages(
            claims,
            [len(row[KEY] or b"") + len(row[VALUE] or b"") for row, _ in claims],
            GROUP_BYTES_MAX,
        ):
            rows, nodes = [row for row, _ in page], [node for _, node in page]
            while rows and self._kept and (rows[-1][KEY] or b"") >= self._kept_lower:
                count = bisect_left(rows, self._kept_lower, key=lambda row: row[KEY] or b"")
                if count:
                    self._write(rows[:count], nodes[:count], losers)
                self._take_kept()
                rows, nodes = rows[count:], nodes[count:]
            if rows:
                self._write(rows, nodes, losers)

    @property
    def _kept_lower(self) -> bytes:
        return self._kept[0].part.lower or b""

    def _take_kept(self) -> None:
        """The next kept file is the next part."""
        self._finish()
        each = self._kept.popleft()
        self._parts.append(each.part)
        self._lower = each.upper

    def _write(self, rows: list[Row], nodes: list[str], losers: set[int]) -> None:
        if self._file is None:
            self._file = ParquetFile(self._folder, SNAPSHOT_SCHEMA, keys_of(self._store))
            if self._parts and not self._parts[-1].is_kept:
                self._lower = separator(self._last, rows[0][KEY] or b"")
        self._last = rows[-1][KEY] or b""
        batch = to_batch(rows, nodes)
        self._file.write(
            batch,
            sum(row[DELETED] or id(row) in losers for row in rows)
            if losers
            else sum(row[DELETED] for row in rows),
        )
        self._rows += len(rows)
        self._bytes += batch.nbytes
        clears = is_clear(rows[0])  # clears come first
        self._clears |= clears
        self._expiry_ms = [
            latest_expiry(
                (
                    *self._expiry_ms,
                    *(0 if clears and is_clear(row) else row[EXPIRES_AT_MS] for row in rows),
                )
            )
        ]
        expiries = [row[EXPIRES_AT_MS] for row in rows if row[EXPIRES_AT_MS] and not is_clear(row)]
        if expiries:
            self._first_expiry_ms = min(*expiries, self._first_expiry_ms or expiries[0])
        growth = 2 ** (len(self._parts) // PARTS_OF_A_SIZE)
        if self._rows >= min(PART_ROWS * growth, PART_ROWS_MAX) or self._bytes >= min(
            PART_BYTES * growth, PART_BYTES_MAX
        ):
            self._finish()

    def close(self) -> tuple[Part, ...]:
        """Store the last part. Returns all parts."""
        self._finish()
        while self._kept:
            self._take_kept()
        return tuple(self._parts)

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        number = len(self._parts)
        path = self._job.part_path(self._name, self._partition, number, self._randomness.name())
        size, checksum = file.discard() if self._job.dry_run else file.publish(self._store, path)
        expiry = latest_expiry(self._expiry_ms)
        live = file.records - file.tombstones
        self._parts.append(
            Part(
                path,
                live,
                file.tombstones,
                size,
                checksum,
                self._partition,
                number,
                expiry,
                self._conflicts,
                self._clears,
                self._lower,
                self._first_expiry_ms,
            )
        )
        self._rows = self._bytes = self._conflicts = self._first_expiry_ms = 0
        self._clears = False
        self._expiry_ms = []
