"""Keeps maps equal to the logs of a cluster, which other processes write.

    one node has written all   what was appended to its segments goes into the maps in its order
    several nodes              a `NewestIndex` says which change of a key is the newest

If that does not suffice, because a snapshot or an archive has changes that were not read yet, or
because an open has cut off what was read, the maps are loaded again, beside those that are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from imap_wal.collector import collecting_rarely
from imap_wal.embedded.loading import InOrder, NotInOrder, ReadAgain
from imap_wal.entry import KEY, MAP, Row, is_clear
from imap_wal.format import Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import EntryBatch
from imap_wal.read.merge import Merge
from imap_wal.read.newest.index import NewestIndex
from imap_wal.rules.alive import is_alive
from imap_wal.settings import Settings
from storage_backends import Unavailable


class Maps(Protocol):
    """The maps that are shown."""

    def fill(self, name: str, rows: Sequence[Row]) -> None:
        """Apply changes of a map, in order."""

    def replaced(self, names: Collection[str] | None) -> AbstractContextManager[None]:
        """Within this, `fill` makes the content of these maps (None: of all) from the start. It is
        shown at the end."""


class _Newest(NewestIndex):
    """Remembers which keys have changed since they were last shown."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.restore_memory_bytes, settings.scratch)
        self.changed: dict[str, dict[bytes, None]] = {}
        self.again: set[str] = set()
        """Maps of which anything may have changed."""
        self.everything = True

    def take(self, scan: object, changes: EntryBatch) -> None:
        super().take(scan, changes)
        if self.everything:
            return
        for row in changes.rows:
            if is_clear(row):
                self.again.add(row[MAP])
            else:
                self.changed.setdefault(row[MAP], {})[row[KEY]] = None

    def remove(self, name: str) -> None:
        super().remove(name)
        self.again.add(name)

    def forget(self) -> None:
        super().forget()
        self.everything = True

    def show(self, maps: Maps, now_ms: int) -> None:
        """Bring the maps up to date."""
        again = None if self.everything else self.again
        if again is None or again:
            with maps.replaced(again):
                for name in self.maps() if again is None else sorted(again):
                    for page in self.batches(name):
                        maps.fill(name, [row for row in page if is_alive(row, now_ms)])
        if again is not None:
            for name in self.changed.keys() - again:
                keys = list(self.changed[name])
                rows = zip(keys, self.get(name, keys), strict=True)
                maps.fill(name, [row or _deletion(name, key) for key, row in rows])
        self.everything, self.again, self.changed = False, set(), {}


_AnyMerge: TypeAlias = "Merge[InOrder] | Merge[_Newest]"


class Follower:
    """Not thread-safe, except where it is said."""

    def __init__(self, cluster: ClusterLog, settings: Settings, maps: Maps) -> None:
        self._cluster, self._settings, self._maps = cluster, settings, maps
        self._merge: _AnyMerge | None = None
        self.loads = 0
        """How often all maps were loaded."""
        self._records = 0

    @property
    def records(self) -> int:
        """How many changes were read. May be read from any thread."""
        merge = self._merge
        return self._records + (0 if merge is None else merge.records)

    @property
    def positions(self) -> dict[str, Position]:
        """Up to where the log of each node is shown. May be read from any thread."""
        merge = self._merge
        return {} if merge is None else merge.ends

    def has_more(self) -> bool:
        """Whether the newest known segment of a node has more: one read for each node. False does
        not say that there is nothing: there may be another segment."""
        return self._merge is None or self._merge.has_more()

    def catch_up(self) -> None:
        """Show what the logs have now. If this raises, what was shown before stays, with a part of
        what follows it in the log. Raises `MissingNode`, `LogError`, `StorageError`."""
        merge = self._merge
        if merge is None:
            self._load()
            return
        try:
            merge.catch_up()
        except NotInOrder:
            self._forget()
            self._load()
        else:
            if isinstance(merge.index, _Newest):
                merge.index.show(self._maps, self._cluster.clock.now_ms())

    def _load(self) -> None:
        with collecting_rarely():
            self._merge = self._loaded_in_order() or self._loaded_merged()
        self.loads += 1

    def _loaded_in_order(self) -> Merge[InOrder] | None:
        for _ in range(ATTEMPTS):
            merge = Merge(self._cluster, self._settings, InOrder(self._maps.fill))
            try:
                with self._maps.replaced(None):
                    merge.catch_up()
            except ReadAgain:
                continue
            except NotInOrder:
                return None
            merge.index.following = True
            return merge
        raise Unavailable("the log was changed at each attempt to read it; try again", "")

    def _loaded_merged(self) -> Merge[_Newest]:
        merge = Merge(self._cluster, self._settings, _Newest(self._settings))
        try:
            merge.catch_up()
            merge.index.show(self._maps, self._cluster.clock.now_ms())
        except BaseException:
            merge.close()
            raise
        return merge

    def _forget(self) -> None:
        if self._merge is not None:
            self._records += self._merge.records
            self._merge.close()
        self._merge = None

    def close(self) -> None:
        """Free memory and scratch. Safe to call twice."""
        self._forget()


def _deletion(name: str, key: bytes) -> Row:
    return (name, key, "", None, "", True, 0, 0, 0, (0, 0, 0, 0))
