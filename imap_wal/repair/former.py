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
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.snapshots import (
    NO_VERSIONS,
    LowWaterMark,
    PartitionVersions,
    Snapshot,
    SnapshotFile,
    position_in,
)
from imap_wal.parquet.salvage import Spans
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.ranges import borders_of
from storage_backends import NotFound

Span: TypeAlias = tuple[bytes, bytes | None]
Source: TypeAlias = ClusterManifest | Base


@dataclass(frozen=True, slots=True)
class Former:
    """A former snapshot, and its files that have keys of `spans`. `versions`: its table. `losses`:
    `ClusterManifest.losses` when it was the newest one."""

    snapshot: Snapshot
    versions: PartitionVersions
    losses: Mapping[str, int]
    files: tuple[SnapshotFile, ...]
    spans: Spans

    def gaps(
        self, view: ClusterState, newest: Snapshot, wants_node: Callable[[str], bool]
    ) -> dict[str, tuple[Position, Position]]:
        """For each node: the positions after and up to which its changes were in the `newest`
        snapshot, and are in neither this one nor the log of the copy."""
        gaps = {}
        for node, mark in newest.marks.items():
            start = position_in(mark.directory, self.snapshot.marks.get(node))
            end = mark.position
            log = view.nodes.get(node) if wants_node(node) else None
            is_there = log is not None and log.manifest.directory == mark.directory
            if log is not None and is_there and log.replaced(view.manifest, view.opened) is None:
                end = min(end, log.manifest.removed)
            first, last = self._gap_before(node, mark, view.manifest)
            if first < last:
                start, end = first, max(end, last)
            if start < end:
                gaps[node] = start, end
        return gaps

    def _gap_before(
        self, node: str, mark: LowWaterMark, now: ClusterManifest
    ) -> tuple[Position, Position]:
        """The same for logs that this node had since, before that of the `mark`. The end of each
        counts as a loss, and nothing of it is left. What several of them had is not known."""
        former = self.snapshot.marks.get(node)
        losses = now.losses.get(node, 0) - self.losses.get(node, 0)
        if not losses or (former is not None and former.directory == mark.directory):
            return START, START
        if losses == 1 and former is not None and former.directory in now.forgotten:
            return former.position, now.forgotten[former.directory]
        return START, mark.position


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
        former += reader.bases
    with suppress(LogError):
        former += ClusterLog.of(context, view).manifests.former()
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
    by_generation: dict[int, tuple[Snapshot, Source]] = {}
    for candidate in sorted(_candidates(sources, name, newest), key=_age, reverse=True):
        # A rewrite without changes raises the marks alone.
        by_generation.setdefault(candidate[0].generation, candidate)
    for snapshot, source in by_generation.values():
        with suppress(LogError, NotFound):  # a list of its files is damaged or deleted
            files = [
                file
                for file, span in _with_spans(context, snapshot)
                if file.path not in whole and any(_meet(span, other) for other in spans)
            ]
            if all(file.path not in lost and _is_whole(context, file) for file in files):
                versions = source.versions.get(snapshot.versions, NO_VERSIONS)
                return Former(snapshot, versions, source.losses, tuple(files), spans)
    return None


def _candidates(
    sources: Iterable[Source], name: str, newest: Snapshot
) -> Iterator[tuple[Snapshot, Source]]:
    """The former snapshots of a map that was not dropped since."""
    for source in sources:
        former = source.snapshots.get(name)
        if former is None or former.mixed or former.generation >= newest.generation:
            continue
        if former.dropped == newest.dropped:
            yield former, source


def _age(candidate: tuple[Snapshot, Source]) -> tuple[int, list[Position], int]:
    snapshot, source = candidate
    positions = sorted(mark.position for mark in snapshot.marks.values())
    return snapshot.generation, positions, sum(source.losses.values())


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
