"""One merge of changes by columns: what was read so far, and its winners in key order.

    read_log, read_snapshot, read_runs ─▶ keys and orders, without values   `Sources`, `NewestKeys`
    write                             ─▶ the rows of a map that the rule keeps, to part files
    sorted_rows                       ─▶ the rows of a map that may still win, for a later merge

Segments, and files that are too small to gain from this, are read as rows, which then become
columns. See docs/decisions/rewrites.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from imap_wal.context import Context
from imap_wal.entry import KEY, ORDER, PARTITION, TIMESTAMP_MS, Row, is_clear, subject
from imap_wal.errors import StorageUnavailable
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, nodes_of, to_rows
from imap_wal.parquet.reader import groups_of
from imap_wal.parquet.scratch import Scratch
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, EntryBatch, FileScan
from imap_wal.read.newest.rivals import Noted, RivalClaims, conflict
from imap_wal.read.scan import read_scan
from imap_wal.retention.overlap import beside
from imap_wal.rewrite.columns.key_columns import (
    KeyBatch,
    pairs_of,
    read_keys,
)
from imap_wal.rewrite.columns.newest_keys import NewestKeys
from imap_wal.rewrite.columns.sources import Sources
from imap_wal.rewrite.columns.winners import RANKED_SCHEMA, RANKS, RowSorter
from imap_wal.rewrite.part_writer import PartWriter
from imap_wal.rewrite.plan import MergeRules
from imap_wal.rewrite.tally import Tally
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.dropped import TombstonePolicy, are_droppable
from imap_wal.rules.newer import Claim, winner_first
from imap_wal.segment.snapshot import is_segment
from imap_wal.settings import Settings
from storage_backends import NotFound
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

PART_BYTES_MAX = 512 * 1024 * 1024
"""A column of the rows in memory must be smaller than 2 GiB."""
COLUMN_ROWS, COLUMN_BYTES = 4096, 4 * 1024 * 1024
"""A Parquet file with at least this many rows, or bytes, is read by columns."""


@dataclass(frozen=True, slots=True)
class MergeSpan:
    """The keys from `lower` on and below `upper`; None: there is no end."""

    lower: bytes = b""
    upper: bytes | None = None

    def has(self, key: bytes | None) -> bool:
        """Whether a key is in it; a clear's key, None, comes before all others."""
        place = key or b""
        return self.lower <= place and (self.upper is None or place < self.upper)

    def of_batch(self, batch: Any) -> Any:
        """The rows of a record batch with keys of this span."""
        keys = batch.column("key")
        if self.lower:
            batch = batch.filter(pc.greater_equal(keys, pa.scalar(self.lower, pa.binary())))
            keys = batch.column("key")
        if self.upper is not None:
            batch = batch.filter(pc.less(keys, pa.scalar(self.upper, pa.binary())))
        return batch


ALL_KEYS = MergeSpan()


@contextmanager
def scratch_errors(settings: Settings) -> Iterator[None]:
    """Raises `StorageUnavailable` for an OSError of this machine: the store raises
    StorageErrors."""
    try:
        yield
    except OSError as error:
        room = settings.scratch or tempfile.gettempdir()
        raise StorageUnavailable(
            f"rewriting needs space for Parquet files in {room}: {error}; nothing was published. "
            "Free space there, or choose another scratch folder"
        ) from error


class ColumnMerge:
    """See the module's docstring. Memory: about `settings.restore_memory_bytes`, and about 100 MB
    more; the rest is written to `settings.scratch`."""

    def __init__(
        self,
        plan: MergeRules,
        log: ClusterLog,
        settings: Settings,
        *,
        span: MergeSpan = ALL_KEYS,
        cleared: Cleared | None = None,
        newest_ms: int | None = None,
    ) -> None:
        """`span`: only these keys are merged. `cleared`: clears that are known already.
        `newest_ms`: entries with a later time are left out."""
        self._plan, self._log, self._folder, self._span = plan, log, settings.scratch, span
        self._newest_ms = newest_ms
        # Each of these needs several times its own limit while it works.
        self._part_bytes = min(max(settings.restore_memory_bytes // 10, 1), PART_BYTES_MAX)
        self.tally = Tally(plan)
        self.cleared = cleared or Cleared()
        self.keys = NewestKeys(self._part_bytes, self._folder)
        self.sources = Sources(
            log.context, self.keys, self.tally.late, self._part_bytes, self._folder
        )
        self.records = 0
        self.run_records = 0
        """Entries of the span that were read."""
        self._noted = Noted()

    def read_log(self, scan: FileScan, context: Context) -> None:
        """Read one file of a log."""
        if scan.kind == ARCHIVE and by_columns(scan):
            try:
                self._read_columns(scan)
                return
            except NotFound:
                # It was merged into another archive, which has its entries. Entries that were
                # already read are read twice, which changes nothing.
                context = self._log.context
        for changes in self._log.read_on(scan, self._plan.maps, context=context):
            self._add(changes, scan)

    def read_snapshot(self, scan: FileScan) -> None:
        """Read one file of a former snapshot."""
        if by_columns(scan):
            self._read_columns(scan)
            return
        for changes in read_scan(self._log.context, scan):
            self._add(changes, scan)

    def read_runs(self, runs: Iterable[tuple[FileScan, Sequence[int], bool]]) -> None:
        """Read row groups of sorted runs (`imap_wal.rewrite.sorted_runs`), which were counted
        before: the files, the numbers of the row groups, and whether all rows are late (see
        `Tally.is_late`); the batches of an archive are judged one by one. One thread reads
        ahead."""
        by_rows: list[tuple[FileScan, bool]] = []

        def keys() -> Iterator[tuple[FileScan, int, bool, KeyBatch]]:
            for scan, groups, late in runs:
                if scan.kind != ARCHIVE and not by_columns(scan):
                    by_rows.append((scan, late))
                    continue
                source = self.sources.file(scan)
                for key_batch in read_keys(self.sources.context, scan, groups):
                    yield scan, source, late, key_batch

        with closing(beside([keys()])) as read:
            for scan, source, late, key_batch in read:
                batch = self._span.of_batch(key_batch.batch)
                self.run_records += len(batch)
                if scan.kind == ARCHIVE:
                    batch = self._counting(batch, scan)
                    self.sources.add_columns(
                        source, batch, self.tally.is_late(scan.node, key_batch.last)
                    )
                else:
                    self.sources.add_columns(source, batch, late)
        for scan, late in by_rows:
            for changes in read_scan(self._log.context, scan):
                rows = self._within(changes.rows)
                self.run_records += len(rows)
                if late:
                    self.tally.late.update(subject(row) for row in rows)
                self.sources.add_rows(rows, changes.node, changes.bytes)

    def write(self, name: str, writer: PartWriter) -> None:
        """Write the rows of a map that are kept, without its clears."""
        for batch, losers, conflicts in self._kept(name):
            writer.count_conflicts(len(conflicts))
            writer.write(batch, losers)

    def winners(self, name: str) -> Iterator[Any]:
        """The rows of a map that are kept, one for each key, in key order: batches with
        `SNAPSHOT_SCHEMA`."""
        for batch, losers, _ in self._kept(name):
            yield batch if losers is None else batch.filter(pc.invert(losers))

    def _kept(self, name: str) -> Iterator[tuple[Any, Any, list[RivalClaims]]]:
        """As `decided`."""
        for batch, losers, conflicts in decided(name, self.sorted_rows(name, self._plan.rule)):
            self._noted.note(conflicts)
            yield batch, losers, conflicts

    def sorted_rows(self, name: str, rule: TombstonePolicy) -> Iterator[Any]:
        """The whole rows of a map that are or may be newest, without those that `rule` drops, in
        key order: batches with `RANKED_SCHEMA`."""
        with closing(RowSorter(self._part_bytes, self._folder)) as sorter:
            self._collect(name, rule, sorter)
            yield from sorter.pages()

    def close(self) -> None:
        self.keys.close()
        self.sources.close()

    def _add(self, changes: EntryBatch, scan: FileScan) -> None:
        """Add rows."""
        if not changes.rows:
            return
        settled = scan.kind == SNAPSHOT
        self.tally.add(changes, count_bytes=scan.kind == SEGMENT, settled=settled)
        rows = self._within(self._then(changes.rows))
        self.records += len(rows)
        if changes.clears:
            self.cleared.take(changes.node, self._then(changes.rows))
            rows = [row for row in rows if not is_clear(row)]
        rows = self._plan.decisions.counting(changes.node, rows)
        self.sources.add_rows(rows, changes.node, changes.bytes)

    def _then(self, rows: list[Row]) -> list[Row]:
        if self._newest_ms is None:
            return rows
        return [row for row in rows if row[TIMESTAMP_MS] <= self._newest_ms]

    def _within(self, rows: list[Row]) -> list[Row]:
        if self._span == ALL_KEYS:
            return rows
        return [row for row in rows if self._span.has(row[KEY])]

    def counted(self, scan: FileScan) -> Generator[KeyBatch]:
        """Count the entries of a Parquet file that is large enough (`by_columns`), and add its
        clears. Its keys are not added to the merge. With `scan.span`, only of the row groups that
        may have such keys."""
        groups = None
        if scan.span is not None:
            groups = groups_of(self.sources.context, scan.path, scan.span, scan.directory)
        with closing(beside([read_keys(self.sources.context, scan, groups)])) as read:
            for key_batch in read:
                self._count(scan, key_batch, self._is_late(scan, key_batch))
                for row, node in key_batch.clears:
                    self.cleared.take(node or scan.node, self._then([row]))
                self.records += len(key_batch.clears) * self._span.has(None)
                yield key_batch

    def _read_columns(self, scan: FileScan) -> None:
        source = self.sources.file(scan)
        for key_batch in self.counted(scan):
            batch = self._span.of_batch(key_batch.batch)
            if self._newest_ms is not None:
                batch = batch.filter(pc.less_equal(batch.column("timestamp_ms"), self._newest_ms))
            self.records += len(batch)
            if len(batch):
                late = self._is_late(scan, key_batch)
                self.sources.add_columns(source, self._counting(batch, scan), late)

    def _is_late(self, scan: FileScan, key_batch: KeyBatch) -> bool:
        return scan.kind != SNAPSHOT and self.tally.is_late(scan.node, key_batch.last)

    def _count(self, scan: FileScan, key_batch: KeyBatch, late: bool) -> None:
        """As `Tally.add` does with rows."""
        if key_batch.records:
            self.tally.count(scan.map, key_batch.records)
        if late:
            self.tally.late.update(subject(row) for row, _ in key_batch.clears)
            return
        batch = key_batch.batch
        self.tally.learn(
            lambda: {
                *pairs_of(batch if scan.kind == ARCHIVE else batch.filter(are_droppable(batch))),
                *((row[PARTITION], *row[ORDER][:2]) for row, _ in key_batch.clears),
            }
        )

    def _counting(self, batch: Any, scan: FileScan) -> Any:
        node = scan.node if scan.kind == ARCHIVE else ""
        return self._plan.decisions.counting_columns(batch, scan.map, node)

    def _collect(self, name: str, rule: TombstonePolicy, sorter: RowSorter) -> None:
        """Read the whole rows of the winners of a map."""
        rank = 0
        with closing(Scratch(PICK_SCHEMA, self._part_bytes, self._folder)) as by_source:
            for contenders in self.keys.ranges(name):
                table = self.cleared.without(contenders, name)
                picked = picks(table, rule, self.sources.nodes, rank)
                rank += picked.num_rows
                for source, batch in _by_source(picked):
                    by_source.add(source, batch)
            sources = (
                self._rows(source, list(by_source.taken(source)))
                for source in sorted(by_source.tags())
            )
            with closing(beside(sources)) as read:
                for batch in read:
                    sorter.add(batch)

    def _rows(self, source: int, picked: list[Any]) -> Iterator[Any]:
        """The whole rows that were picked from a source, with `RANKED_SCHEMA`."""
        table = pa.Table.from_batches(picked, PICK_SCHEMA)
        if len(picked) > 1:
            table = table.sort_by("row")
        table = table.combine_chunks()
        at = 0
        for batch in self.sources.rows(source, table["row"].combine_chunks()):
            own = table.slice(at, len(batch))
            at += len(batch)
            extra = [own[rank.name].combine_chunks() for rank in RANKS]
            yield pa.record_batch([*batch.columns, *extra], schema=RANKED_SCHEMA)


def _by_source(picked: Any) -> Iterator[tuple[int, Any]]:
    """Picks, which are sorted by source, one source at a time."""
    start = 0
    for value_count in pc.value_counts(picked["source"]):
        count = value_count["counts"].as_py()
        for batch in picked.slice(start, count).combine_chunks().to_batches():
            yield value_count["values"].as_py(), batch
        start += count


def by_columns(scan: FileScan) -> bool:
    """Whether a file is read by columns: a Parquet file that is large enough."""
    if is_segment(scan.path):
        return False
    return scan.records >= COLUMN_ROWS or (scan.records > 0 and scan.bytes >= COLUMN_BYTES)


# Chooses, by columns, which contenders a snapshot keeps: none that the rule drops, and all claims
# of keys in conflict.

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

PICK_SCHEMA = pa.schema(
    [pa.field("source", pa.int32()), pa.field("row", pa.int64()), *RANKS],
)


def picks(table: Any, rule: TombstonePolicy, nodes: Sequence[str], rank: int) -> Any:
    """From contenders: which rows must be read, sorted by source and row. They are numbered by key,
    the claims of a key with the winner first, from `rank` on."""
    table, claimed = winner_first(table, nodes)
    dropped = rule.drop_columns(table, nodes)
    stays = pc.or_(claimed, pc.invert(dropped))
    picked = pa.table(
        [
            table["source"].filter(stays),
            table["row"].filter(stays),
            _numbers(rank, stays.true_count),
            claimed.filter(stays),
            dropped.filter(stays),
            table["late"].filter(stays),
        ],
        PICK_SCHEMA,
    )
    return picked.sort_by([("source", "ascending"), ("row", "ascending")])


def decided(name: str, pages: Iterator[Any]) -> Iterator[tuple[Any, Any, list[RivalClaims]]]:
    """From rows in key order with `RANKED_SCHEMA`: the batches of rows that are kept, which of them
    are claims that lost (None: none), and the conflicts."""
    group: list[Any] = []
    for page in pages:
        batch = page
        start = 0
        if group:  # more claims of its key?
            key = group[0].column("key")[0]
            keys = batch.column("key")
            while start < len(batch) and keys[start] == key:
                start += 1
            if start:
                group.append(batch.slice(0, start))
                batch = batch.slice(start)
            if not len(batch):
                continue
            yield from _of_claims(name, group)
            group = []
        if batch.column("claimed")[-1].as_py():
            keys, start = batch.column("key"), len(batch) - 1
            while start and keys[start - 1] == keys[start]:
                start -= 1
            group, batch = [batch.slice(start)], batch.slice(0, start)
        if len(batch):
            yield from _of_claims(name, [batch])
    if group:
        yield from _of_claims(name, group)


def _of_claims(name: str, batches: list[Any]) -> Iterator[tuple[Any, Any, list[RivalClaims]]]:
    """`decided` for batches, each with all claims of its keys. The batches are not joined: a column
    must be smaller than 2 GiB."""
    claims: list[tuple[int, int, Claim, bool]] = []
    for number, batch in enumerate(batches):
        places = pc.indices_nonzero(batch.column("claimed"))
        if len(places):
            few = batch.take(places)
            rows_of_few = zip(
                to_rows(few.select(SNAPSHOT_SCHEMA.names)), nodes_of(few), strict=True
            )
            dropped = few.column("dropped").to_pylist()
            claims += [
                (number, place, claim, drop)
                for place, claim, drop in zip(places.to_pylist(), rows_of_few, dropped, strict=True)
            ]
    gone, lost = set[tuple[int, int]](), set[tuple[int, int]]()
    conflicts: list[RivalClaims] = []
    for key, grouped in groupby(claims, key=lambda claim: claim[2][0][KEY]):
        group = list(grouped)
        one = conflict(name, key, [claim for _, _, claim, _ in group])
        losers = [(number, place) for number, place, _, _ in group[1:]]
        if one is not None:
            conflicts.append(one)
            lost.update(losers)
            continue
        gone.update(losers)
        number, place, _, drop = group[0]
        if drop:
            gone.add((number, place))
    for number, batch in enumerate(batches):
        rows = batch.select(SNAPSHOT_SCHEMA.names)
        if not claims:
            yield rows, None, []
            continue
        order = range(len(batch))
        stays = pa.array([(number, place) not in gone for place in order], pa.bool_())
        losing = pa.array([(number, place) in lost for place in order], pa.bool_())
        yield rows.filter(stays), losing.filter(stays), conflicts if not number else []


def _numbers(first: int, count: int) -> Any:
    """The integers from `first` on."""
    places = pc.indices_nonzero(pa.repeat(pa.scalar(True), count)).cast(pa.int64())
    return pc.add(places, first)
