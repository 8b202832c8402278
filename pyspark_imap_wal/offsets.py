"""The offset of a stream: the last position of every node, and what must be the same when a batch
is read again after a crash.

    {"nodes": {"n1": "00000001.…@id"}, "directories": {"n1": "uuid"}, "incarnation": 4,
     "snapshots": {"orders": 17}, "start": ""}

`start` is where a new query starts, "" for all later offsets. "earliest": the first batch begins
with the snapshots, whose generations are in its end. "latest": the first batch is empty. Spark asks
for this offset again if the driver dies in the first batch, so it must not depend on the time of
the question.

`dropped` is only in offsets of streams with images: the maps that had been dropped, with the
generation of the drop. In an offset without it, they are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from operator import itemgetter
from typing import Any, NamedTuple, Self

import pyarrow as pa

from imap_wal import format
from imap_wal.errors import PositionGone
from imap_wal.format import START, Position
from imap_wal.parquet.reader import Expected, batches
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.scan_list import node_scans
from imap_wal.read.state import ClusterState
from imap_wal.segment.reader import SegmentReader
from pyspark_imap_wal.options import EARLIEST, positions_of
from pyspark_imap_wal.tables.schemas import POSITION_COLUMNS


@dataclass(frozen=True)
class Offset:
    """The offset of a stream. The beginning of this module describes its fields."""

    nodes: Mapping[str, Position] = field(default_factory=dict)
    directories: Mapping[str, str] = field(default_factory=dict)
    incarnation: int = 0
    snapshots: Mapping[str, int] = field(default_factory=dict)
    start: str = ""
    dropped: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark, with sorted keys: Spark compares offsets as text."""
        document = {
            "directories": dict(sorted(self.directories.items())),
            "incarnation": self.incarnation,
            "nodes": {node: str(place) for node, place in sorted(self.nodes.items())},
            "snapshots": dict(sorted(self.snapshots.items())),
            "start": self.start,
        }
        if self.dropped is not None:
            document["dropped"] = dict(sorted(self.dropped.items()))
        return document

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            positions_of(data["nodes"]),
            data["directories"],
            data["incarnation"],
            data["snapshots"],
            data["start"],
            data.get("dropped"),
        )

    @property
    def whole(self) -> bool:
        """Whether the batch that starts here begins with the snapshots."""
        return self.start == EARLIEST

    def moved(self, state: ClusterState, ends: Mapping[str, Position]) -> Offset:
        """The offset at these ends. A node that is not in them stays where it is."""
        nodes = dict(self.nodes)
        for node, end in ends.items():
            if end > nodes.get(node, START):
                nodes[node] = state.marked(node, end)
        directories = {
            node: log.manifest.directory for node, log in state.nodes.items() if node in nodes
        }
        return replace(
            self,
            nodes=nodes,
            directories={**self.directories, **directories},
            incarnation=max([self.incarnation, *_incarnations(state)]),
            snapshots={},
            start="",
        )


def demand_unpruned(state: ClusterState, node: str, since: Position, end: Position) -> None:
    """Raises `PositionGone` if entries of a node between two positions were removed."""
    removed = state.removed().get(node, START)
    if removed > since < end:
        raise PositionGone(
            f"{since} of node {node!r}",
            f"{removed.after()}, the option `reader` lets prune keep what a stream has not read",
        )


def _incarnations(state: ClusterState) -> list[int]:
    return [lifetime.incarnation for lifetime in state.manifest.lifetimes]


class BatchLimit(NamedTuple):
    """The most that a batch may have. `size`: in rows; with `in_bytes`, in stored bytes."""

    size: int
    in_bytes: bool = False

    @classmethod
    def of(cls, limit: Any) -> Self | None:
        """`limit`: as Spark passes it. None if it limits neither rows nor bytes."""
        if rows := getattr(limit, "max_rows", 0):
            return cls(rows)
        size = getattr(limit, "max_bytes", 0)
        return cls(size, in_bytes=True) if size else None


def limited(
    log: ClusterLog,
    state: ClusterState,
    since: Mapping[str, Position],
    ends: Mapping[str, Position],
    limit: BatchLimit,
    maps: Collection[str] | None,
) -> dict[str, Position]:
    """Ends of a batch of about the size of `limit`: at the end of a frame, and at least one frame.
    The nodes share it: what one node does not use is left for the next ones."""
    reached: dict[str, Position] = {}
    left = limit.size
    waiting = [node for node in sorted(ends) if ends[node] > since.get(node, START)]
    for count, node in enumerate(waiting):
        start = since.get(node, START)
        share = max(1, left // (len(waiting) - count))
        own = limit._replace(size=share)
        used, reached[node] = _reach(log, state, node, (start, ends[node]), own, maps)
        left = max(0, left - used)
    return reached


def _reach(
    log: ClusterLog,
    state: ClusterState,
    node: str,
    between: tuple[Position, Position],
    limit: BatchLimit,
    maps: Collection[str] | None,
) -> tuple[int, Position]:
    """The size of the first frames after a position, and the end of these frames."""
    start, end = between
    scans = node_scans(
        state,
        node,
        since=start if start > START else None,
        until=end,
        maps=maps,
        covered=True,
    )
    archives = sorted((scan for scan in scans if scan.kind == ARCHIVE), key=lambda scan: scan.first)
    used, place = 0, start
    while archives:
        group = [archives.pop(0)]
        last = group[0].last
        while archives and archives[0].first <= last:
            group.append(archives.pop(0))
            last = max(last, group[-1].last)
        row_bytes = sum(scan.bytes for scan in group) / max(1, sum(scan.records for scan in group))
        for at, rows in _frames_of(log, group, between):
            size = ceil(rows * row_bytes) if limit.in_bytes else rows
            if used and used + size > limit.size:
                return used, place
            used, place = used + size, at
    for scan in scans:
        if scan.kind == ARCHIVE:
            continue
        reader = SegmentReader(log.store, scan.path)
        segment = (scan.epoch, scan.number)
        first = start.frame if start[:2] == segment else None
        for frame in reader.whole_frames(first):
            at = Position(*segment, frame.offset, max(frame.count - 1, 0))
            if at > end:
                break
            if at <= start:
                continue
            rows = frame.count if frame.kind in format.OF_ENTRIES else 0
            size = frame.end - frame.offset if limit.in_bytes else rows
            if used and used + size > limit.size:
                return used, place
            used, place = used + size, at
    return used, end


def _frames_of(
    log: ClusterLog, group: list[FileScan], between: tuple[Position, Position]
) -> list[tuple[Position, int]]:
    """The last position and the number of rows of every frame in archives whose positions
    overlap, in order."""
    tables = [
        pa.Table.from_batches(
            batches(
                log.context,
                scan.path,
                list(POSITION_COLUMNS),
                expected=Expected(scan.checksum, scan.records, scan.directory),
            )
        )
        for scan in group
    ]
    counts = (
        pa.concat_tables(tables)
        .group_by(["epoch", "segment", "frame"])
        .aggregate([("index", "max"), ("index", "count")])
    )
    lines = zip(
        *(counts[name].to_pylist() for name in ("epoch", "segment", "frame")),
        counts["index_max"].to_pylist(),
        counts["index_count"].to_pylist(),
        strict=True,
    )
    frames = [(Position(*line[:4]), line[4]) for line in lines]
    start, end = between
    return sorted(((at, count) for at, count in frames if start < at <= end), key=itemgetter(0))
