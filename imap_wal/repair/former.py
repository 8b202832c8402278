"""Former snapshots of a map, for what its newest one has lost.

Readers keep the files of former snapshots, and the history does; those of former manifests remain
until the next prune. The newest one is used whose files are whole for the keys that are lost. It
has these keys as they were at its marks. The log above them counts again, as far as it is there:
what a prune removed of it, and only the damaged file had, is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

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

Span: TypeAlias = tuple[bytes, bytes | None]
Source: TypeAlias = tuple[Mapping[str, Snapshot], Mapping[int, PartitionVersions]]
"""Snapshots by map, and the tables that they name."""


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


def _with_spans(context: Context, snapshot: Snapshot) -> Iterator[tuple[SnapshotFile, Span]]:
    """The files of a snapshot, and the keys that each may have."""
    lowers = borders_of(snapshot, context.keys)
    if lowers is None:
        yield from ((file, (b"", None)) for file in snapshot.files)
        return
    yield from zip(snapshot.files, zip(lowers, [*lowers[1:], None], strict=True), strict=True)


def _spans_of(context: Context, snapshot: Snapshot, paths: Collection[str]) -> Spans:
    """The keys that these files of a snapshot may have; spans that meet are one."""
    spans: list[Span] = []
    for file, (lower, upper) in _with_spans(context, snapshot):
        if file.path in paths:
            start = spans.pop()[0] if spans and spans[-1][1] in (lower, None) else lower
            spans.append((start, upper))
    return tuple(spans)


def sources(context: Context, view: ClusterState) -> list[Source]:
    """Where former snapshots of any map may be: the bases of readers, and former manifests."""
    former: list[Source] = []
    for reader in readers.examined(context.store, view.folder)[0].values():
        former += [(base.snapshots, base.versions) for base in reader.bases]
    with suppress(LogError):
        for manifest in ClusterLog.of(context, view).manifests.former():
            former.append((manifest.snapshots, manifest.versions))
    return former


def former_with(
    context: Context,
    sources: Iterable[Source],
    name: str,
    newest: Snapshot,
    lost: Collection[str],
) -> Former | None:
    """The newest former snapshot of a map that has the keys of the `lost` files whole; None: there
    is none."""
    spans, whole = _spans_of(context, newest, lost), set(newest.paths) - set(lost)
    by_generation: dict[int, tuple[Snapshot, PartitionVersions]] = {}
    for candidate in sorted(_candidates(sources, name, newest), key=_age, reverse=True):
        # A rewrite without changes raises the marks alone.
        by_generation.setdefault(candidate[0].generation, candidate)
    for snapshot, versions in by_generation.values():
        with suppress(LogError, NotFound):  # a list of its files is damaged or deleted
            files = [
                file
                for file, span in _with_spans(context, snapshot)
                if file.path not in whole and any(_meet(span, other) for other in spans)
            ]
            if all(file.path not in lost and _is_whole(context, file) for file in files):
                return Former(snapshot, versions, tuple(files), spans)
    return None


def _candidates(
    sources: Iterable[Source], name: str, newest: Snapshot
) -> Iterator[tuple[Snapshot, PartitionVersions]]:
    """The former snapshots of a map that was not dropped since, with their tables."""
    for snapshots, versions in sources:
        former = snapshots.get(name)
        if former is None or former.mixed or former.generation >= newest.generation:
            continue
        if former.dropped == newest.dropped:
            yield former, versions.get(former.versions, NO_VERSIONS)


def _age(candidate: tuple[Snapshot, PartitionVersions]) -> tuple[int, list[Position]]:
    snapshot, _ = candidate
    return snapshot.generation, sorted(mark.position for mark in snapshot.marks.values())


def _meet(one: Span, other: Span) -> bool:
    return all(
        end is None or start < end for start, end in ((one[0], other[1]), (other[0], one[1]))
    )


def _is_whole(context: Context, file: SnapshotFile) -> bool:
    try:
        with context.store.open_input(file.path) as source:
            return file.checksum != 0 and checksum(source) == file.checksum
    except NotFound:
        return False
