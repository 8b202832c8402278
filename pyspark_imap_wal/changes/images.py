"""A task of a read with images: the entries of its keys, key by key."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    MAP,
    ORDER,
    TIMESTAMP_MS,
    VALUE,
    Order,
    Row,
    is_clear,
)
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, FileScan, Metadata
from imap_wal.read.scan import ahead
from imap_wal.rules.alive import has_expired
from imap_wal.rules.cleared import NO_FLOOR, is_hidden
from imap_wal.rules.newer import Claim, Contest, content_of
from pyspark_imap_wal.changes.sorter import Clears, EntrySorter, place_of, subject_of
from pyspark_imap_wal.columns import EntryQuery, of_rows, shaped
from pyspark_imap_wal.tables.schemas import CHANGE_COLUMNS
from storage_backends.location import Location

MEMORY_BYTES = 256 * 1024 * 1024
"""Approximate memory, in bytes, of the entries that a task sorts."""
KEYS_BYTES = 64 * 1024 * 1024
"""Approximate limit, in bytes, of the keys of its changes. Above it, the state of all keys is
read."""
KEY_BYTES = 100
"""Memory of a key in a set, without the key's own bytes."""
BATCH_ROWS, BATCH_BYTES = 4096, 4 * 1024 * 1024
YEAR_10000_MS = 253_402_300_800_000
"""Spark's timestamps end there."""


@dataclass
class ChangesPartition(InputPartition):
    """The keys of one cluster whose hash is in a bucket. `before`: files with the state of the maps
    where the read starts; `changes`: files with the entries after it. `place`: the root with the
    options that the driver has."""

    namespace: str
    cluster: str
    before: list[FileScan]
    changes: list[FileScan]
    bucket: int
    buckets: int
    metadata: tuple[Metadata, ...]
    place: Location


def read_images(log: ClusterLog, task: ChangesPartition, query: EntryQuery) -> Iterator[Any]:
    """The images of a task, as record batches. Raises `NotFound`, `LogError`, `MissingNode`, and
    `StorageUnavailable` if this machine has no room to sort them."""
    with closing(EntrySorter(MEMORY_BYTES)) as sorter:
        entries = _Entries(task, query, sorter)
        entries.read_changes(log)
        entries.read_before(log)
        for part in _parts(entries.images()):
            yield shaped(log, _batch(part, query), query)


class _Entries:
    """The entries of a task."""

    def __init__(self, task: ChangesPartition, query: EntryQuery, sorter: EntrySorter) -> None:
        self._task, self._sorter = task, sorter
        self._maps = query.maps or None
        self._only = query.filters.keys() if query.filters is not None else None
        self._touched = _Touched()
        self._clears, self._earlier = Clears(), Clears()

    def read_changes(self, log: ClusterLog) -> None:
        """Read the entries after the start, and note which keys they may change."""
        for row, node in self._read(log, self._task.changes):
            if is_clear(row):
                self._clears.add(row, node)
                self._touched.add_all(row[MAP])
            else:
                self._touched.add(row[MAP], row[KEY])
                self._sorter.add(row, node, is_change=True)

    def read_before(self, log: ClusterLog) -> None:
        """Read the state of these keys at the start."""
        for row, node in self._read(log, self._touched.narrowed(self._task.before)):
            if is_clear(row):
                self._earlier.add(row, node)
            elif self._touched.has(row[MAP], row[KEY]):
                self._sorter.add(row, node, is_change=False)

    def images(self) -> Iterator[Image]:
        for (name, key), group in groupby(self._sorter.sorted(), key=subject_of):
            state = KeyState()
            for (*_, node), row, _ in self._earlier.of(name, key):
                state.add(row, node)
            entries = heapq.merge(group, self._clears.of(name, key), key=place_of)
            for (_, _, is_change, _, node), row, _ in entries:
                if is_change:
                    yield from state.images(row, node)
                else:
                    state.add(row, node)

    def _read(self, log: ClusterLog, scans: Iterable[FileScan]) -> Iterator[Claim]:
        only, bucket, buckets = self._only, self._task.bucket, self._task.buckets
        if only is not None:
            few = frozenset(only)
            scans = [replace(scan, keys=(scan.keys or few) & few) for scan in scans]
        for scan, source in ahead(log.context, scans):
            for batch in log.read_on(scan, self._maps, context=source):
                for row in batch.rows:
                    key = row[KEY]
                    if is_clear(row) or (
                        (only is None or key in only)
                        and (buckets == 1 or zlib.crc32(key) % buckets == bucket)
                    ):
                        yield row, batch.node


class _Touched:
    """The keys that may change, as long as they are few."""

    def __init__(self) -> None:
        self._keys: dict[str, set[bytes] | None] = {}
        """Map → its keys; None: any."""
        self._size = 0

    def add(self, name: str, key: bytes) -> None:
        keys = self._keys.setdefault(name, set())
        if keys is not None and key not in keys:
            keys.add(key)
            self._size += KEY_BYTES + len(key)
            if self._size > KEYS_BYTES:
                self._keys = dict.fromkeys(self._keys)
                self._size = 0

    def add_all(self, name: str) -> None:
        self._keys[name] = None

    def has(self, name: str, key: bytes) -> bool:
        keys = self._keys.get(name, ())
        return keys is None or key in keys

    def narrowed(self, scans: Iterable[FileScan]) -> Iterator[FileScan]:
        """The files that may have such a key, each read only where it may have one."""
        for scan in scans:
            if scan.kind == SEGMENT:
                if self._keys:
                    yield scan
            elif scan.map in self._keys:
                keys = self._keys[scan.map]
                yield scan if keys is None else replace(scan, keys=frozenset(keys))


def _parts(images: Iterator[Image]) -> Iterator[list[Image]]:
    held: list[Image] = []
    size = 0
    for image in images:
        held.append(image)
        size += len(image.row[KEY]) + len(image.row[VALUE] or b"")
        if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _batch(images: list[Image], query: EntryQuery) -> Any:
    names = sorted(query.needed - CHANGE_COLUMNS.keys())
    rows, nodes = [image.row for image in images], [image.node for image in images]
    batch = of_rows(rows, nodes, names)
    columns = {
        "_change_type": pa.array([image.kind for image in images], pa.string()),
        "_commit_version": pa.array([version(image.change[ORDER]) for image in images]),
        "_commit_timestamp": pa.array(
            [1000 * _in_range(image.change[TIMESTAMP_MS]) for image in images], pa.int64()
        ).cast(pa.timestamp("us", "UTC")),
    }
    for name, column in columns.items():
        batch = batch.append_column(name, column)
    return batch


def version(order: Order) -> str:
    """An order as text that sorts in the same way."""
    return ".".join(f"{number:019d}" for number in order)


def _in_range(time_ms: int) -> int:
    return min(max(time_ms, 0), YEAR_10000_MS - 1)


# The state of one key in a map before and after each change.
#
# Only order decides which change counts, as in every merge: a change of a lower order than the
# newest one has no image, because it does not change the map.

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
"""The values of `_change_type`: those of Spark's own interface of a changelog, and of Delta."""
_CONTEST: Contest[Claim] = Contest(
    lambda claim: claim[0][ORDER],
    itemgetter(1),
    lambda claim: claim[0][DELETED],
    lambda claim: content_of(claim[0]),
)


class Image(NamedTuple):
    """An entry, the node that wrote it, and the change that began or ended it."""

    kind: str
    row: Row
    node: str
    change: Row


class KeyState:
    """The state of one key in a map."""

    __slots__ = ("_claims", "_floor")

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        """The contenders (`imap_wal.rules.newer`), the winner first."""
        self._floor = NO_FLOOR

    def add(self, row: Row, node: str) -> None:
        """A change of the key, or a clear of its partition."""
        if is_clear(row):
            if not is_hidden(row, self._floor):
                self._floor = row[ORDER]
            return
        self._claims = _CONTEST.add(self._claims, (row, node))

    @property
    def live(self) -> Claim | None:
        """The entry that the map has; it may have expired."""
        for claim in self._claims:
            if not is_hidden(claim[0], self._floor):
                return None if claim[0][DELETED] else claim
        return None

    def images(self, row: Row, node: str) -> Iterator[Image]:
        """Add a change, and return the images of what it changed."""
        before = self.live
        self.add(row, node)
        after = self.live
        if _is_same(before, after):
            return
        if after is None:
            assert before is not None
            yield Image(DELETE, *before, row)
        elif before is None or has_expired(before[0][EXPIRES_AT_MS], row[TIMESTAMP_MS]):
            yield Image(INSERT, *after, row)
        else:
            yield Image(BEFORE, *before, row)
            yield Image(AFTER, *after, row)


def _is_same(claim: Claim | None, other: Claim | None) -> bool:
    """Whether there is no difference; the logs of several nodes may have copies of one change."""
    if claim is None or other is None:
        return claim is other
    (row, _), (other_row, _) = claim, other
    return row[ORDER] == other_row[ORDER] and content_of(row) == content_of(other_row)
