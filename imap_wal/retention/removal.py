"""Removes files from a node's log: whole archives and sealed segments, oldest first.

The manifest is changed first, then the files are deleted. A reader that finds a file missing reads
the manifest again, and sees that the entries were removed. A crash in between leaves files that no
manifest names; the writer's next archive run, or the next removal, deletes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.disposal import dispose, reachable
from imap_wal.errors import LostRace
from imap_wal.format import END, START, Position
from imap_wal.manifest import readers
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.node import NOTHING_SEEN, NodeManifest, NodeManifestLog, Seen
from imap_wal.manifest.store import ManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import segment_scan
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.retention.sealed_segments import (
    Summary,
    carried,
    delete_segments,
    outline,
    summarize,
)
from imap_wal.retention.snapshots import demand_whole, remove_former
from imap_wal.settings import Settings
from storage_backends import NotFound, SegmentStore, StoredFile


@dataclass(frozen=True, slots=True)
class Removal:
    """The files to remove. `summaries`: of `segments`, in the same order."""

    archives: tuple[Archive, ...] = ()
    segments: tuple[FileScan, ...] = ()
    summaries: tuple[Summary, ...] = ()

    @property
    def maps(self) -> set[str]:
        """The maps whose entries are removed."""
        names = {archive.map for archive in self.archives}
        return names.union(*(summary.maps for summary in self.summaries))

    @property
    def bytes(self) -> int:
        """The size of the files, in bytes."""
        return sum(archive.bytes for archive in self.archives) + sum(
            segment.bytes for segment in self.segments
        )


def plan_removal(
    context: Context,
    node: NodeState,
    *,
    upto: Position = END,
    covered: Mapping[str, Position] | None = None,
    complete: Position = START,
    writing: int = 2**62,
    linked: bool = True,
    forgotten: Collection[str] = (),
) -> Removal:
    """The files whose entries are all at or below `upto` and, unless `covered` is None, at or below
    their map's position in `covered` and read by every reader (`imap_wal.manifest.readers`).
    `complete`: all entries of segments that end at or below it are of maps in `covered`, and are
    covered. `writing`: number of the first segment that is not sealed. `linked`: False omits files
    reached through a symbolic link: they would be removed from the manifest, but not deleted.
    `forgotten`: readers that do not count."""
    end = min(complete, node.manifest.checkpoint, upto)
    if covered is not None:
        read = readers.read_by_all(
            context.store, layout.cluster_of(node.folder), node.name, END, forgotten
        )
        covered = {name: min(position, read) for name, position in covered.items()}
        end = min(end, read)
    archives, retained = list(node.manifest.archives_ending_by(upto)), set[str]()
    if not linked:
        paths = [archive.path for archive in archives]
        paths += [segment.path for segment in node.segments]
        retained = set(paths).difference(reachable(context.store, paths))

    def is_removable(name: str, last: Position) -> bool:
        return last <= upto and (covered is None or last <= covered.get(name, START))

    def candidates() -> Iterator[FileScan]:
        for index, segment in enumerate(node.segments):
            if (
                segment.number >= writing
                or (segment.epoch, segment.number) > upto[:2]
                or segment.path in retained
            ):
                return
            yield segment_scan(node, index, None)

    segments: list[FileScan] = []
    summaries: list[Summary] = []
    for scan, source in ahead(context, candidates()):
        try:
            summary = outline(source, scan, end, covered or ()) or summarize(source, scan)
        except NotFound:
            break  # the log's writer has archived it meanwhile
        if not all(is_removable(name, last) for name, last in summary.maps.items()):
            break
        segments.append(scan)
        summaries.append(summary)
    gone = tuple(
        archive
        for archive in archives
        if archive.path not in retained and is_removable(archive.map, archive.last)
    )
    return Removal(gone, tuple(segments), tuple(summaries))


def plan_covered(
    context: Context,
    state: ClusterState,
    name: str,
    writing: int,
    forgotten: Collection[str] = (),
) -> Removal:
    """The files of a node whose entries are all covered by a snapshot, and that can be deleted:
    none that is reached through a link. `forgotten`: as in `plan_removal`."""
    node, covered = state.nodes[name], state.covered(name)
    return plan_removal(
        context,
        node,
        upto=max(covered.values(), default=START),
        covered=covered,
        complete=_known_complete(state, node),
        writing=writing,
        linked=False,
        forgotten=forgotten,
    )


def _known_complete(state: ClusterState, node: NodeState) -> Position:
    """`ClusterState.complete` if it saves work. Without reading the entries of a segment, it is
    not known which maps it has, so the snapshots of all maps are checked before it is removed."""
    snapshots = sum(snapshot.bytes for snapshot in state.manifest.snapshots.values())
    segments = sum(segment.bytes for segment in node.segments)
    return state.complete(node.name) if snapshots <= segments else START


def without(
    manifest: NodeManifest,
    archives: Collection[Archive],
    segments: Sequence[FileScan],
    summaries: Sequence[Summary],
) -> NodeManifest:
    """The manifest without these files, with what must be kept of the segments."""
    # The position of the last entry, not of the last frame: a reader that has read this entry may
    # continue.
    lasts = [archive.last for archive in archives] + [
        place for summary in summaries for place in summary.maps.values()
    ]
    left = replace(
        manifest.with_archives((), archives),
        removed=max([manifest.removed, *lasts]),
    )
    if segments and manifest.archived < (segments[-1].epoch, segments[-1].number):
        left = carried(left, (segments[-1].epoch, segments[-1].number), summaries)
    return left


def remove(
    store: SegmentStore,
    node: NodeState,
    manifests: ManifestLog[NodeManifest],
    removal: Removal,
    justified: Seen = NOTHING_SEEN,
) -> set[str]:
    """Remove the files. Returns the deleted paths. `justified`: the cluster's manifest whose
    snapshots cover what is removed; afterwards an older one must not be used with this node. Raises
    `LostRace` if there is another log under this node's name meanwhile."""
    if not removal.archives and not removal.segments:
        return set()

    def change(manifest: NodeManifest) -> NodeManifest:
        if manifest.directory != node.manifest.directory:
            raise LostRace(
                f"node {node.name!r} has another log now, so nothing was removed from it; run "
                "this again"
            )
        left = without(manifest, removal.archives, removal.segments, removal.summaries)
        return replace(left, cluster=left.cluster.up_to(justified))

    manifests.update(change)
    gone = dispose(store, [archive.path for archive in removal.archives], f"{node.folder}/archive")
    return gone | delete_segments(
        store, node.folder, node.manifest.epoch, [segment.path for segment in removal.segments]
    )


# How long covered files are kept: `wal_ttl_seconds` and `wal_size_limit_mb`, with RocksDB's rules.
#
#   both 0      only a compaction or `imap-wal prune` removes files
#   ttl only    covered files that are older are removed
#   size only   the oldest covered files are removed until the rest fits
#   both        first the files that are too old, then the oldest until the rest fits
#
# A file that no snapshot covers is never removed, whatever its age or size.
# `imap_wal.write.maintenance` decides when this is checked.

MB = 1024 * 1024


def paths_to_remove(
    files: Iterable[StoredFile], now_ms: int, ttl_s: int, size_limit_mb: int
) -> set[str]:
    """Paths of the covered files to remove."""
    gone: set[str] = set()
    kept_bytes = 0
    for file in sorted(files, key=lambda file: (file.modified_ms, file.path), reverse=True):
        old = ttl_s > 0 and now_ms - file.modified_ms > ttl_s * 1000
        kept_bytes += 0 if old else file.size
        if old or (size_limit_mb > 0 and kept_bytes > size_limit_mb * MB):
            gone.add(file.path)
    return gone


def part_to_remove(
    log: ClusterLog, node: NodeState, removal: Removal, ttl_s: int, size_limit_mb: int
) -> Removal:
    """The part of `removal` that is to be removed by age and size."""
    files = {
        file.path: file
        for part in ("archive", "wal")
        for file in log.store.list(f"{node.folder}/{part}")
    }
    covered = [
        *(archive.path for archive in removal.archives),
        *(segment.path for segment in removal.segments),
    ]
    gone = paths_to_remove(
        (files[path] for path in covered if path in files), log.clock.now_ms(), ttl_s, size_limit_mb
    )
    # Segments are removed only in order: after a segment that is kept, all are kept.
    count = next(
        (index for index, segment in enumerate(removal.segments) if segment.path not in gone),
        len(removal.segments),
    )
    return Removal(
        tuple(archive for archive in removal.archives if archive.path in gone),
        removal.segments[:count],
        removal.summaries[:count],
    )


def remove_covered(log: ClusterLog, node_name: str, settings: Settings, writing: int) -> Removal:
    """For the writer of a node's log: remove covered files by age and size, and snapshot files that
    no reader needs any more. `writing`: number of the first segment that is not sealed. Raises
    `CorruptLog` for a damaged or missing file of a snapshot; nothing that it covers is removed
    then."""
    if not settings.wal_ttl_seconds and not settings.wal_size_limit_mb:
        return Removal()
    state = log.state()
    if not state.manifest.snapshots:
        return Removal()
    removal = _remove_files(log, state, node_name, settings, writing)
    remove_former(log)
    return removal


def _remove_files(
    log: ClusterLog, state: ClusterState, node_name: str, settings: Settings, writing: int
) -> Removal:
    node = state.nodes.get(node_name)
    covered = state.covered(node_name) if node is not None else {}
    if node is None or not covered:
        return Removal()
    writing = _first_that_stays(log, node, covered, settings, writing)
    plan = plan_covered(log.context, state, node_name, writing)
    removal = part_to_remove(log, node, plan, settings.wal_ttl_seconds, settings.wal_size_limit_mb)
    demand_whole(log, state.manifest, removal.maps)
    remove(
        log.store,
        node,
        NodeManifestLog(log.context, node.folder),
        removal,
        state.seen,
    )
    return removal


def _first_that_stays(
    log: ClusterLog,
    node: NodeState,
    covered: Mapping[str, Position],
    settings: Settings,
    writing: int,
) -> int:
    """The number of the first segment that is certainly kept. So that segment and the later ones
    are not read: only reading shows what a segment contains, and this function is called
    repeatedly."""
    last = max(covered.values())
    sealed = {
        segment.path: segment.number
        for segment in node.segments
        if segment.number < writing and (segment.epoch, segment.number) <= last[:2]
    }
    archives = {
        archive.path
        for archive in node.manifest.archives
        if archive.last <= covered.get(archive.map, START)
    }
    files = [
        file
        for part in ("archive", "wal")
        for file in log.store.list(f"{node.folder}/{part}")
        if file.path in archives or file.path in sealed
    ]
    gone = paths_to_remove(
        files, log.clock.now_ms(), settings.wal_ttl_seconds, settings.wal_size_limit_mb
    )
    if settings.wal_size_limit_mb and gone:
        return writing  # the sizes of all covered segments matter
    return min((number for path, number in sealed.items() if path not in gone), default=writing)
