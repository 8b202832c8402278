"""Logs of several nodes without agents, written and read by a test."""

from __future__ import annotations

from typing import Any

from imap_wal import format
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE, Row, pack
from imap_wal.layout import Identity
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.view import MaterializedView
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from storage_backends import SegmentStore
from tests.support import FakeClock

SMALL = Settings(preallocate=False)


def node(store: SegmentStore, name: str = "n1", settings: Settings = SMALL) -> NodeLog:
    return open_node_log(
        LogContext(
            Context(store, clock=FakeClock(), randomness=SeededRandomness(ord(name[-1]))),
            Identity("ns", "c", name),
            settings,
        ),
        holder="the test",
    )


def opened(store: SegmentStore, clock: FakeClock, name: str = "n1") -> NodeLog:
    return open_node_log(
        LogContext(
            Context(store, clock=clock, randomness=SeededRandomness(1)),
            Identity("ns", "c", name),
            SMALL,
        ),
        holder="the test",
    )


def append(log: NodeLog, *rows: Row, frames: int = 1) -> None:
    for part in range(frames):
        mine = rows[part::frames]
        log.write(format.ENTRIES, len(mine), [pack(row) for row in mine])
    log.sync()


def cluster(store: SegmentStore, clock: FakeClock | None = None) -> ClusterLog:
    return ClusterLog(
        Context(store, clock=clock or FakeClock(), randomness=SeededRandomness(9)), "ns", "c"
    )


def view(store: SegmentStore, clock: FakeClock | None = None, **settings: Any) -> MaterializedView:
    made = MaterializedView(cluster(store, clock), Settings(**settings))
    made.catch_up()
    return made


def values(made: MaterializedView, name: str = "orders") -> dict[str, str]:
    return {
        row[KEY].decode(): (row[VALUE] or b"").decode() for rows in made.rows(name) for row in rows
    }


def parquet_rows(store: SegmentStore, path: str) -> list[tuple[Row, str]]:
    """The rows of a Parquet file, with their nodes."""
    from imap_wal.parquet.columns import nodes_of, to_rows
    from imap_wal.parquet.reader import batches

    return [
        item
        for batch in batches(Context(store), path)
        for item in zip(to_rows(batch), nodes_of(batch), strict=True)
    ]
