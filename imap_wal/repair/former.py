"""Former snapshots of a map, for what its newest one has lost.

Readers keep the files of former snapshots, and the history does; those of former manifests remain
until the next prune. The newest one is used whose files are whole for the keys that are lost. It
has these keys as they were at its marks. The log above them counts again, as far as it is there:
what a prune removed of it, and only the damaged file had, is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from imap_wal.contents import checksum
from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.format import START, Position
from imap_wal.manifest import readers
from imap_wal.manifest.snapshots import NO_VERSIONS, PartitionVersions, Snapshot, SnapshotFile
from imap_wal.parquet.salvage import Spans
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.ranges import borders_of
from storage_backends import NotFound

ALL_KEYS: Spans = ((b"", None),)


@dataclass(frozen=True, slots=True)
class Former:
    """A former snapshot, and its files that have keys of `spans`. `versions`: its table."""

    snapshot: Snapshot
    versions: PartitionVersions
    files: tuple[SnapshotFile, ...]
    spans: Spans

    def gaps(
        self, view: ClusterState, newest: Snapshot, wants_node: Callable[[str], bool]
    ) -> dict[str, tuple[Position, Position]]:
        """For each node: the positions after and up to which its changes were in the `newest`
        snapshot, and are in neither this one nor the log of the copy."""
        gaps = {}
        for node, mark in newest.marks.items():
            former = self.snapshot.marks.get(node)
            same = former is not None and former.directory == mark.directory
            start, end = former.position if former is not None and same else START, mark.position
            log = view.nodes.get(node) if wants_node(node) else None
            is_there = log is not None and log.manifest.directory == mark.directory
            if log is not None and is_there and log.replaced(view.manifest, view.opened) is None:
                end = min(end, log.manifest.removed)
            if start < end:
                gaps[node] = start, end
        return gaps


def spans_of(snapshot: Snapshot, paths: Collection[str], context: Context) -> Spans:
    """The keys that these files of a snapshot may have."""
    lowers = borders_of(snapshot, context.keys)
    if lowers is None:
        return ALL_KEYS
    uppers = [*lowers[1:], None]
    return tuple(
        (lower, upper)
        for file, lower, upper in zip(snapshot.files, lowers, uppers, strict=True)
        if file.path in paths
    )


def former_with(
    context: Context, view: ClusterState, name: str, newest: Snapshot, lost: Collection[str]
) -> Former | None:
    """The newest former snapshot of a map that has the keys of the `lost` files whole; None: there
    is none."""
    spans, whole = spans_of(newest, lost, context), set(newest.paths) - set(lost)
    candidates = _candidates(context, view, name, newest)
    for snapshot, versions in sorted(candidates, key=lambda pair: -pair[0].generation):
        with suppress(LogError, NotFound):  # a list of its files is damaged or deleted
            with_keys = _with_keys(context, snapshot, spans)
            files = [file for file in with_keys if file.path not in whole]
            if all(file.path not in lost and _is_whole(context, file) for file in files):
                return Former(snapshot, versions, tuple(files), spans)
    return None


def _candidates(
    context: Context, view: ClusterState, name: str, newest: Snapshot
) -> Iterator[tuple[Snapshot, PartitionVersions]]:
    """The former snapshots of a map that was not dropped since, with their tables."""
    sources: list[tuple[Mapping[str, Snapshot], Mapping[int, PartitionVersions]]] = []
    for reader in readers.examined(context.store, view.folder)[0].values():
        sources += [(base.snapshots, base.versions) for base in reader.bases]
    with suppress(LogError):
        for manifest in ClusterLog.of(context, view).manifests.former():
            sources.append((manifest.snapshots, manifest.versions))
    for snapshots, versions in sources:
        former = snapshots.get(name)
        if former is None or former.mixed or former.generation >= newest.generation:
            continue
        if former.dropped == newest.dropped:
            yield former, versions.get(former.versions, NO_VERSIONS)


def _with_keys(context: Context, snapshot: Snapshot, spans: Spans) -> Iterator[SnapshotFile]:
    """The files that may have keys of these spans."""
    for file in snapshot.files:
        for lower, upper in spans_of(snapshot, [file.path], context):
            if any(
                (end is None or lower < end) and (upper is None or start < upper)
                for start, end in spans
            ):
                yield file


def _is_whole(context: Context, file: SnapshotFile) -> bool:
    try:
        with context.store.open_input(file.path) as source:
            return file.checksum != 0 and checksum(source) == file.checksum
    except NotFound:
        return False
