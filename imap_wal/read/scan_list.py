"""The files that a reader reads, their order, and the entries of each that count. A scan is a
`FileScan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from imap_wal.format import END, START, Position
from imap_wal.manifest.epochs import between
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT, FileScan
from imap_wal.read.state import ClusterState, NodeState
from storage_backends import NotFound


def cluster_scans(
    state: ClusterState,
    *,
    since: Mapping[str, Position] | None = None,
    until: Mapping[str, Position] | None = None,
    maps: Collection[str] | None = None,
    nodes: Collection[str] | None = None,
    snapshots: bool = True,
    covered: bool = False,
    metadata: bool = True,
) -> list[FileScan]:
    """The files to read, snapshots first, then node by node in log order. `covered=True` also
    reads what a snapshot covers, if it still exists. `metadata=False` leaves out segments in which
    only metadata is not covered."""
    scans: list[FileScan] = []
    if snapshots:
        for name, snapshot in sorted(state.manifest.snapshots.items()):
            if maps is None or name in maps:
                scans += snapshot_scans(name, snapshot)
    for node in sorted(state.nodes):
        if nodes is None or node in nodes:
            scans += node_scans(
                state,
                node,
                since=(since or {}).get(node),
                until=None if until is None else until.get(node, START),
                maps=maps,
                covered=covered,
                metadata=metadata,
            )
    return scans


def node_scans(
    state: ClusterState,
    node: str,
    *,
    since: Position | None = None,
    until: Position | None = None,
    maps: Collection[str] | None = None,
    covered: bool = False,
    metadata: bool = True,
) -> list[FileScan]:
    """`cluster_scans` of one node."""
    if until == START:
        return []
    log = state.nodes[node]
    marks = {} if covered else state.covered(node)
    cuts = state.cuts(node)
    overtaken = {} if covered else state.overtaken()
    complete = START if covered else state.complete(node)
    archives = [
        FileScan(
            ARCHIVE,
            node,
            archive.path,
            archive.map,
            log.manifest.directory,
            first=archive.first,
            last=archive.last,
            since=since,
            until=until,
            covered=marks,
            cuts=cuts,
            bytes=archive.bytes,
            records=archive.records,
            checksum=archive.checksum,
            unpacked=archive.unpacked,
            overtaken=overtaken,
            epochs=between(log.manifest.epochs, archive.first.epoch, archive.last.epoch),
        )
        for archive in _archives(log, since, until, maps, marks)
    ]
    segments = [
        replace(
            segment_scan(log, index, since),
            until=until,
            covered=marks,
            cuts=cuts,
            checkpoint=log.manifest.checkpoint,
            newest=log.manifest.newest,
            overtaken=overtaken,
            complete=complete,
        )
        for index in _segments(log, since, until, maps, marks)
        if metadata or log.segments[index].name >= complete[:2]
    ]
    return archives + segments


def _archives(
    log: NodeState,
    since: Position | None,
    until: Position | None,
    maps: Collection[str] | None,
    marks: Mapping[str, Position],
) -> Iterator[Archive]:
    """The archives with entries that count, in log order. `marks`: what snapshots cover."""
    for archive in sorted(log.manifest.archives, key=lambda archive: (archive.first, archive.map)):
        below = max(since or START, marks.get(archive.map, START))
        if (
            archive.last > below
            and (until is None or archive.first <= until)
            and (maps is None or archive.map in maps)
        ):
            yield archive


def _segments(
    log: NodeState,
    since: Position | None,
    until: Position | None,
    maps: Collection[str] | None,
    marks: Mapping[str, Position],
) -> Iterator[int]:
    """The indexes of the segments that may have such entries."""
    all_covered = (
        min((marks.get(name, START) for name in maps), default=END) if maps is not None else START
    )
    below = max(since or START, all_covered)
    for index, segment in enumerate(log.segments):
        segment_name = (segment.epoch, segment.number)
        if segment_name >= below[:2] and (until is None or segment_name <= until[:2]):
            yield index


def last_planned(scan: FileScan, place: Position | None) -> Position:
    """The last position in a file of a log that is known to be read, if it was read up to
    `place`."""
    if scan.kind == ARCHIVE:
        return scan.last
    until = scan.until if scan.until and scan.until[:2] == (scan.epoch, scan.number) else START
    return max(place or START, until)


def replacing_scans(
    scan: FileScan, place: Position | None, state: ClusterState, maps: Collection[str] | None
) -> list[FileScan]:
    """The files that now have the entries of a scan above `place`, with the same rules. `state` has
    its node. Raises `NotFound` if a snapshot covers the entries and their log was removed, or if
    nothing replaced the file."""
    node = state.nodes[scan.node]
    own_name = (scan.epoch, scan.number)
    end = scan.last if scan.kind == ARCHIVE else Position(*own_name, END.epoch, END.epoch)
    until = end if scan.until is None else min(end, scan.until)
    start = max(place or START, scan.since or START, scan.first._replace(index=-1))
    if scan.kind == SEGMENT:
        start = max(start, Position(*own_name, -1, 0))
    for name, mark in state.covered(scan.node).items():
        is_read = name == scan.map if scan.map else maps is None or name in maps
        covered_to = max(start, scan.covered.get(name, START))
        if is_read and mark > covered_to < node.manifest.removed:
            reason = f"a newer snapshot covers map {name!r}, and its log was removed; begin again"
            raise NotFound(reason, scan.path)
    replacing = []
    names = (scan.map,) if scan.map else maps
    for node_scan in node_scans(
        state, scan.node, since=start, until=until, maps=names, covered=True
    ):
        same = node_scan.kind == SEGMENT and (node_scan.epoch, node_scan.number) == own_name
        if node_scan.kind == SEGMENT and not same and scan.kind == SEGMENT:
            continue
        rules = replace(
            node_scan,
            covered=scan.covered,
            cuts=scan.cuts,
            overtaken=scan.overtaken,
            keys=scan.keys,
            span=scan.span,
            complete=scan.complete,
        )
        if same:  # with the original bounds, so that its end is checked
            rules = replace(rules, until=scan.until, since=place)
        replacing.append(rules)
    if not replacing and (scan.kind == ARCHIVE or own_name > node.manifest.archived):
        raise NotFound("this file of the log is missing, and none replaced it", scan.path)
    return replacing


def segment_scan(log: NodeState, index: int, since: Position | None) -> FileScan:
    """The segment `index` of those that are not archived, from `since` on."""
    segment = log.segments[index]
    following = log.segments[index + 1].path if index + 1 < len(log.segments) else ""
    return FileScan(
        SEGMENT,
        log.name,
        segment.path,
        "",
        log.manifest.directory,
        segment.epoch,
        segment.number,
        next_path=following,
        since=since,
        bytes=segment.bytes,
        epochs=between(log.manifest.epochs, segment.epoch, segment.epoch),
    )


def snapshot_scans(name: str, snapshot: Snapshot) -> list[FileScan]:
    """The part files of a snapshot, with their facts from the manifest."""
    return [
        FileScan(
            SNAPSHOT,
            "",
            file.path,
            name,
            bytes=file.size,
            records=file.rows,
            checksum=file.checksum,
        )
        for file in snapshot.files
    ]
