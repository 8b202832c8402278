"""What `stat` tells of one cluster: live and dead per map and node, files, and how long the next restore will take."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.clock import Clock
from imap_wal.entry import Row, pack, rows
from imap_wal.format import START
from imap_wal.index import NewestIndex
from imap_wal.pieces import read_piece
from imap_wal.restore import ClusterLog, live, no_garbage_collection
from imap_wal.settings import Settings
from rewrite_cli.report import ClusterStatistics, Forecast, MapNodeStatistics, NodeStatistics
from rewrite_cli.rewriter import Tally

CALIBRATION_ROWS = 20_000
ROW_OVERHEAD_BYTES = 40
"""What a row takes on storage besides key, value and their labels, about."""


@dataclass(slots=True)
class _Count:
    live: int = 0
    tombstones: int = 0
    live_bytes: int = 0


def statistics(log: ClusterLog, settings: Settings | None = None) -> ClusterStatistics:
    """Read the whole log once, as a restore would. Nodes that are missing are named, not asked for."""
    settings = settings or Settings()
    state = log.state()
    tallies = {node: Tally({}) for node in state.nodes}
    index = NewestIndex(settings.restore_memory_bytes, settings.scratch)
    try:
        with no_garbage_collection():
            for piece in log.pieces(state):
                for changes in read_piece(log.store, piece):
                    if changes.rows:
                        tallies.setdefault(changes.node, Tally({})).add(changes, count_bytes=True)
                        index.add(changes.node, changes.rows, changes.bytes)
            counts = _count(index, log.clock.now_ms())
    finally:
        index.close()
    maps = tuple(
        MapNodeStatistics(
            map=name,
            node=node,
            records=totals.records,
            live=count.live,
            dead=totals.records - count.live,
            tombstones=count.tombstones,
            live_bytes=min(count.live_bytes, totals.bytes),
            dead_bytes=max(totals.bytes - count.live_bytes, 0),
        )
        for node, tally in sorted(tallies.items())
        for name, totals in sorted(tally.maps.items())
        for count in [counts.get((name, node), _Count())]
    )
    nodes = tuple(
        NodeStatistics(
            node=node.name,
            segments=len(node.segments),
            segment_bytes=sum(segment.bytes for segment in node.segments),
            archives=len(node.manifest.archives),
            archive_bytes=sum(archive.bytes for archive in node.manifest.archives),
            clean=node.manifest.clean,
            end=max([node.manifest.checkpoint, START, *(archive.last for archive in node.manifest.archives)]),
        )
        for node in state.nodes.values()
    )
    snapshots = state.manifest.snapshots
    return ClusterStatistics(
        namespace=log.namespace,
        cluster=log.cluster,
        maps=maps,
        nodes=nodes,
        snapshots={name: snapshot.live for name, snapshot in snapshots.items()},
        snapshot_bytes=sum(snapshot.bytes for snapshot in snapshots.values()),
        missing=state.missing,
        forecast=forecast(sum(item.records for item in maps), sum(item.live for item in maps), log.clock),
    )


def forecast(records: int, living: int, clock: Clock) -> Forecast:
    """Restore time of a log of so many records, by the rate at which this machine merges right now."""
    rate = merge_rate(clock)
    return Forecast(records, living, rate, records / rate, living / rate)


def merge_rate(clock: Clock) -> float:
    """Records of 100 bytes a second, measured for some 30 ms."""
    payload = b"".join(
        pack(("calibration", b"%012d" % (number % 5000), "", b"v" * 100, "", False, 1_700_000_000_000, 0, number % 271, (1, 1, 1, number)))
        for number in range(CALIBRATION_ROWS)
    )  # fmt: skip
    index = NewestIndex(2**30)
    start = clock.monotonic()
    index.add("node", list(rows(payload)), len(payload))
    seconds = clock.monotonic() - start
    index.close()
    return CALIBRATION_ROWS / max(seconds, 1e-6)


def _count(index: NewestIndex, now_ms: int) -> dict[tuple[str, str], _Count]:
    counts: dict[tuple[str, str], _Count] = {}
    for name in index.maps():
        for batch, nodes in index.batches_with_nodes(name):
            alive = {id(row) for row in live(batch, now_ms)}
            for row, node in zip(batch, nodes, strict=True):
                count = counts.setdefault((name, node), _Count())
                if id(row) in alive:
                    count.live += 1
                    count.live_bytes += stored_bytes(row)
                else:
                    count.tombstones += 1
    return counts


def stored_bytes(row: Row) -> int:
    """What a row takes in a segment, about."""
    return ROW_OVERHEAD_BYTES + len(row[0]) + len(row[1]) + len(row[2]) + len(row[3] or b"") + len(row[4])
