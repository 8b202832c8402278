"""Which registered readers of a log do not move, as one agent sees it. A stream is compared with
the end of this node's log, a published table with the newest snapshots of its maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imap_wal.errors import LogError
from imap_wal.format import Position
from imap_wal.inspect.lags import STREAM, lags
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import ReaderManifest
from imap_wal.manifest.readers import readers_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from storage_backends import NotFound


@dataclass(frozen=True, slots=True)
class Stall:
    """`unread_bytes`: of this node's log; 0 for a published table. `since_ms`: the Unix time since
    which it has not moved although there is more to read; 0: it has read everything."""

    unread_bytes: int
    since_ms: int


NEW = Stall(0, 0)


@dataclass(frozen=True, slots=True)
class ReaderStalls:
    """By the names of the readers. `end`: where this node's log ended at that time, `looked_ms`.
    `grew_ms`: the log grew after that, and has not grown since the look that found it; 0: not
    known. Both in Unix time.

    A stream of Spark reports a batch only when the next one begins. So what it has not reported may
    be read, unless the log has grown since its last report."""

    streams: Mapping[str, Stall] = field(default_factory=dict)
    tables: Mapping[str, Stall] = field(default_factory=dict)
    end: Position | None = None
    looked_ms: int = 0
    grew_ms: int = 0

    def newer(self, log: ClusterLog, node: str) -> ReaderStalls:
        """The stalls now; `self` while a manifest is damaged, or changes too fast: removals report
        that. Raises StorageError."""
        try:
            return self._now(log, node)
        except (LogError, NotFound):
            return self

    def _now(self, log: ClusterLog, node: str) -> ReaderStalls:
        readers = readers_of(log.store, log.folder)
        if not readers:
            return ReaderStalls()
        now_ms, manifest = log.clock.now_ms(), log.manifest()
        tables = {}
        for name, reader in readers.items():
            if reader.files_only:
                is_old = _is_old(reader, manifest)
                since_ms = _since(self.tables.get(name), is_old, reader.updated_ms, now_ms)
                tables[name] = Stall(0, since_ms)
        streams, end, grew_ms = {}, self.end, self.grew_ms
        own = ClusterState(manifest, {node: log.node(node)}, {})
        for lag in lags(log, own, {} if end is None else {node: end}):
            if lag.kind == STREAM:
                if lag.end != self.end:
                    end, grew_ms = lag.end, self.looked_ms
                has_more = lag.position < lag.end
                stalls = has_more and grew_ms > lag.updated_ms
                former = self.streams.get(lag.reader, NEW)
                since_ms = _since(former, stalls, lag.updated_ms, now_ms)
                streams[lag.reader] = Stall(lag.unread_bytes if has_more else 0, since_ms)
        return ReaderStalls(streams, tables, end, now_ms, grew_ms)


def _is_old(table: ReaderManifest, manifest: ClusterManifest) -> bool:
    """Whether a map has a newer snapshot than the one whose publication began last. Whether it
    succeeded is only known to the table."""
    newest: dict[str, int] = {}
    for base in table.bases:
        for name, snapshot in base.snapshots.items():
            newest[name] = max(newest.get(name, 0), snapshot.generation)
    return any(
        name in manifest.snapshots and manifest.snapshots[name].generation > generation
        for name, generation in newest.items()
    )


def _since(former: Stall | None, stalls: bool, updated_ms: int, now_ms: int) -> int:
    """Since when a reader has not moved, as `Stall.since_ms`. `former`: None for a table if the
    agent has just started: then it takes the time of the reader's last report. Otherwise, if there
    was nothing to read before, the stall begins now."""
    if not stalls:
        return 0
    began_ms = 0 if former is None else former.since_ms or now_ms
    return max(began_ms, updated_ms)
