"""The newest entries of a cluster's log, for many threads: `MaterializedView`.

`imap_wal.read.merge` keeps them up to date, with tombstones and expired entries. Reads leave these
out (`live`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, Row
from imap_wal.errors import Closed
from imap_wal.format import Position
from imap_wal.partitions import Partitions
from imap_wal.read.cluster import ClusterLog, T
from imap_wal.read.file_scan import Metadata
from imap_wal.read.merge import Merge, MergeProgress, MergeStatistics, RestoreStatistics
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted
from imap_wal.rules.alive import is_alive, is_live
from imap_wal.settings import Settings


class MaterializedView:
    """The newest change of every key over all nodes. Thread-safe. Nothing is read before the first
    `catch_up`. Methods raise `Closed` after `close`."""

    def __init__(
        self,
        log: ClusterLog,
        settings: Settings,
        progress: Callable[[MergeProgress], None] | None = None,
        expired_until_ms: Callable[[], int] | None = None,
    ) -> None:
        self._expired_until_ms = expired_until_ms or log.clock.now_ms
        """Entries that expired at or before this time are left out; 0: none is."""
        self._lock = threading.RLock()
        self._index = NewestIndex(settings.restore_memory_bytes, settings.scratch)
        self._merge = Merge(log, settings, self._index, progress)
        self._noted = Noted()

    @property
    def positions(self) -> dict[str, str]:
        """Up to where each node's log is merged. Safe to read from any thread, even during a
        merge."""
        return {node: str(end) for node, end in self._merge.ends.items()}

    @property
    def merged(self) -> MergeStatistics:
        """Replaced after each merge; safe to read from any thread, even during a merge."""
        return self._merge.merged

    @property
    def version(self) -> int:
        """Grows when the index is rebuilt or a map is removed from it: an older iteration then
        misses keys."""
        return self._merge.version

    def catch_up(self) -> None:
        """The first call merges everything, later calls what was appended since; cheap if nothing
        was. Raises `MissingNode`, `LogError`, `StorageError`."""
        with self._lock:
            self._check_open()
            self._merge.catch_up()

    def maps(self) -> list[str]:
        """Names of all maps that have a live key."""
        with self._lock:
            return [
                name for name in self._index.maps() if next(self.keys(name, 1000), None) is not None
            ]

    def names(self) -> list[str]:
        """Names of all maps that have any entry in the log, even if only tombstones."""
        with self._lock:
            self._check_open()
            return self._index.maps()

    def clear_counts(self) -> set[int]:
        """The different partition counts of all clears."""
        with self._lock:
            self._check_open()
            return self._index.clear_counts()

    def hash_keys(self, count: int) -> None:
        """Hash keys for listings of some of `count` partitions. A later call hashes only new
        keys."""
        with self._lock:
            self._check_open()
            self._index.hash_keys(count)

    def is_releasable(self, partition_count: int) -> bool:
        """Whether `release` saves much memory, or has not ended. It waits for no other thread: ask
        in the one that merges."""
        return self._index.is_releasable(partition_count)

    def release(self, partition_count: int, pause: Callable[[], bool]) -> None:
        """Move what was merged to scratch: reads take longer then. `pause` is called again and
        again; when it returns True, because a reader waits, the release ends soon. Raises
        `StorageUnavailable`."""
        with self._lock:
            self._check_open()
            self._index.release(partition_count, pause)

    def key_class(self, name: str) -> str | None:
        """The class of a key of a map, even of one that was deleted; None: there is none. Takes the
        same time for any number of keys."""
        with self._lock:
            self._check_open()
            return self._index.key_class(name)

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of these maps that have any entry in the log, even if only tombstones."""
        with self._lock:
            self._check_open()
            return [name for name in names if name in self._index]

    def keys(
        self, name: str, batch: int = 10_000, partitions: Partitions | None = None
    ) -> Iterator[list[bytes]]:
        """The live keys of a map, in no order, at most `batch` at a time. `partitions`: only keys
        in these. Reads no values."""
        for states in self._each(self._index.keys(name, batch, partitions)):
            now = self._expired_until_ms()
            keys = [key for key, deleted, expires in states if is_live(deleted, expires, now)]
            if keys:
                yield keys

    def rows(self, name: str, batch: int = 10_000) -> Iterator[list[Row]]:
        """The live rows of a map, in no order, at most `batch` rows and about
        `NewestIndex.page_bytes` bytes at a time."""
        for rows in self._each(self._index.batches(name, batch)):
            alive = live(rows, self._expired_until_ms())
            if alive:
                yield alive

    def _each(self, pages: Iterator[T]) -> Iterator[T]:
        """Takes each page of a listing with the lock held. The index may change between two of
        them."""
        while True:
            with self._lock:
                self._check_open()
                page = next(pages, None)
                self._noted.note(self._index.conflicts())
            if page is None:
                return
            yield page

    def load(self, name: str, keys: Sequence[bytes]) -> list[Row]:
        """The live rows of those keys, without absent, deleted and expired ones."""
        return self.load_some(name, keys, None)[0]

    def load_some(
        self, name: str, keys: Sequence[bytes], bytes_max: int | None
    ) -> tuple[list[Row], int]:
        """`load` of as many of the first keys as fit into `bytes_max`, at least one; and their
        number."""
        with self._lock:
            self._check_open()
            rows = self._index.get(name, keys, bytes_max)
            self._noted.note(self._index.conflicts())
        return live([row for row in rows if row is not None], self._expired_until_ms()), len(rows)

    def digest(self, name: str, salt: bytes, partitions: Partitions) -> bytes | None:
        """The digest of a map's live entries in some partitions (see the function `digest`). None:
        some rows are on disk, so this would take as long as reading all of them."""
        with self._lock:
            self._check_open()
            rows = self._index.in_memory(name, partitions)
            self._noted.note(self._index.conflicts())
        return None if rows is None else digest(salt, live(rows, self._expired_until_ms()))

    def metadata(self) -> list[Metadata]:
        """The schemas of all nodes and the newest other metadata, each once."""
        with self._lock:
            return self._merge.metadata()

    def ends(self) -> dict[str, Position]:
        """The position up to which each node's log is merged."""
        with self._lock:
            return self._merge.ends

    @property
    def conflicts_seen(self) -> int:
        """How many keys readers of this view have found in conflict, at most `NAMED_MAX` of
        `rivals`. Does not wait for a merge."""
        return self._noted.count

    @property
    def missing(self) -> Mapping[str, str]:
        """Nodes that were left out (recovery policy partial), with the reason."""
        return self._merge.missing

    @property
    def covered(self) -> Mapping[str, str]:
        """Nodes that cannot be read, with the reason: other logs have their acknowledged
        changes."""
        return self._merge.covered

    @property
    def statistics(self) -> RestoreStatistics:
        with self._lock:
            total = sum(map(self._index.count, self._index.maps()))
            now = self._expired_until_ms()
            living = conflicts = 0
            for name in self._index.maps():
                for states in self._index.keys(name):
                    living += sum(is_live(deleted, expires, now) for _, deleted, expires in states)
                    for conflict in self._index.conflicts():
                        conflicts += 1
                        self._noted.note((conflict,))
            return RestoreStatistics(
                self._merge.records,
                self._merge.bytes,
                living,
                total - living,
                self._merge.seconds,
                self._merge.missing,
                conflicts,
            )

    def _check_open(self) -> None:
        if self._merge.stopped:
            raise Closed("this view was closed")

    def interrupt(self) -> None:
        """End a merge under way with `Closed` at its next batch; nothing is merged after this. May
        be called from any thread; does not wait."""
        self._merge.stop()

    def close(self) -> None:
        """Free memory and scratch. Safe to call twice."""
        self.interrupt()
        with self._lock:
            self._merge.close()


def live(rows: Sequence[Row], now_ms: int) -> list[Row]:
    """Leaves out tombstones and expired entries."""
    return [row for row in rows if is_alive(row, now_ms)]


# The digest of some entries: 16 bytes, equal for equal entries in any order.
#
# A member computes it from its memory, and the agent from the log. Partitions with equal digests
# need not be sent. It is the sum, modulo 2^128, of one hash for each entry: the first 16 bytes of
# the SHA-256 of
#
#   salt | expires_at_ms / 1000, rounded down, 8 bytes | size of the key, 4 bytes | key | value
#
# The member chooses the salt, 16 random bytes, for each comparison: the writer of the entries did
# not know it, and so could not choose entries that have the digest of others. Hazelcast keeps the
# expiry in whole seconds.

DIGEST_BYTES = 16
SALT_BYTES = 16
JOINED_BYTES = 1 << 16
"""A larger value is hashed without a copy."""
_NEVER = bytes(8)


def digest(salt: bytes, rows: Iterable[Row]) -> bytes:
    """The digest of live rows."""
    total = 0
    for row in rows:
        key, value, expires_at_ms = row[KEY], row[VALUE] or b"", row[EXPIRES_AT_MS]
        expires = (
            (expires_at_ms // 1000).to_bytes(8, "big", signed=True) if expires_at_ms else _NEVER
        )
        begin = (salt, expires, len(key).to_bytes(4, "big"), key)
        if len(value) <= JOINED_BYTES:  # a second call takes longer than a copy
            hashed = sha256(b"".join((*begin, value)))
        else:
            hashed = sha256(b"".join(begin))
            hashed.update(value)
        total += int.from_bytes(hashed.digest()[:DIGEST_BYTES], "big")
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "big")
