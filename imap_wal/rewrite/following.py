"""A table that follows its map. Each round is a rewrite of the map and a publication:

    the logs and the snapshots are as the last round left them ─▶ nothing to do
    otherwise ─▶ rewrite: reads what is new, writes the ranges of keys that changed
              ─▶ publish: one version of the table, with the positions that it has reached
              ─▶ the files of former snapshots that no query needs are deleted

A process that is killed at any point leaves the former version or the new one. Its next round, or
that of another process, continues from the positions in the log's manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from imap_wal.errors import InvalidSetting, NoSuchLog
from imap_wal.format import Position
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import SnapshotFile
from imap_wal.publish.publication import PublishedTable, publish
from imap_wal.publish.recorded import table_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.snapshots import remove_former
from imap_wal.rewrite.plan import Engine
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.turn import turn


@dataclass(frozen=True, slots=True)
class _Snapshots:
    """`nodes`: name → log directory. `of_maps`: map → the generation and the files of its
    snapshot."""

    nodes: Mapping[str, str]
    of_maps: Mapping[str, tuple[int, Listed[SnapshotFile]]]

    def is_of_the_log_of(self, former: _Snapshots) -> bool:
        return not {*self.nodes.values()}.isdisjoint(former.nodes.values())


class TableFollower:
    """Publishes maps of one log, round by round. `tables`: map → its table, as
    `imap_wal.publish.recorded.text_of`. `engine`: makes the engine of a rewrite. `keep`: as for
    `publish`. `waits`: called with the name of another process that rewrites this log, for which a
    round waits."""

    def __init__(
        self,
        log: ClusterLog,
        tables: Mapping[str, str],
        engine: Callable[[], Engine],
        keep: int,
        waits: Callable[[str], None],
    ) -> None:
        self._log, self._tables, self._engine = log, tables, engine
        self._keep, self._waits = keep, waits
        self._ends: dict[str, Position] | None = None
        """Where the logs ended when the last round with a rewrite began."""
        self._snapshots: _Snapshots | None = None
        """What that rewrite left."""
        self._is_published = False
        """Whether all of it is published."""
        self._made: set[str] = set()
        """The maps whose tables were there after a round. No round makes a dropped one again."""

    def round(self) -> list[PublishedTable]:
        """One round. Returns the tables of the maps that have a snapshot; none if nothing has
        changed. Raises `NoSuchLog`, and the errors of `rewrite` and `publish`; the next round does
        what was left."""
        # A drop changes only the snapshot. A copy of the log in its place has another one.
        now = self._look()
        if self._snapshots and not now.is_of_the_log_of(self._snapshots):
            self._made.clear()
        is_same = now == self._snapshots
        ends = self._log.ends(self._ends if is_same else None)
        if not ends:  # a rewrite would make a manifest for it
            raise NoSuchLog(
                f"{self._log.store.url}: the log in {self._log.folder} is no longer there; "
                "bring it back, or end this process"
            )
        is_same = is_same and ends == self._ends
        if is_same and self._is_published:
            return []
        with turn(self._log, "imap-wal publish --follow", self._waits):
            if not is_same:
                self._is_published = False
                rewrite(self._log, self._engine(), maps=self._tables)
                self._ends, self._snapshots = ends, self._look()
            there = self._log.manifest().snapshots
            published = [self._publish(name) for name in self._tables if name in there]
            remove_former(self._log)
        self._is_published = True
        return published

    def _look(self) -> _Snapshots:
        manifest = self._log.manifest()
        there = {name: manifest.snapshots.get(name) for name in self._tables}
        return _Snapshots(
            manifest.nodes,
            {name: (it.generation, it.files) for name, it in there.items() if it is not None},
        )

    def _publish(self, name: str) -> PublishedTable:
        table = table_of(self._log, name, self._tables[name])
        if name in self._made and not table.read().generation:
            raise InvalidSetting(
                f"the table {table.place} of map {name!r} was dropped: end this process, or start "
                "it again to make a new table"
            )
        done = publish(self._log, name, table, keep=self._keep)
        self._made.add(name)
        return done
