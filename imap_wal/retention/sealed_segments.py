"""The facts of sealed segments that must be kept after the segments are deleted; and the
deletion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.disposal import dispose
from imap_wal.entry import MAP, ORDER
from imap_wal.format import START, Position
from imap_wal.manifest.node import NodeManifest
from imap_wal.read.file_scan import MEMBERS_MAX, EntryBatch, FileScan, Metadata
from imap_wal.read.scan import read_scan
from imap_wal.segment.listing import sorted_out
from storage_backends import SegmentStore


@dataclass(slots=True)
class Summary:
    """The facts to keep of sealed segments when they are deleted. `maps`: map → position of its
    last entry, or a higher one. `requests`: session → its last request. `end`: the last
    position."""

    maps: dict[str, Position] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)
    metadata: dict[Metadata, None] = field(default_factory=dict)
    end: Position = START

    def add(self, changes: EntryBatch) -> None:
        """Add a batch with positions."""
        self.add_requests(changes)
        for row, place in zip(changes.rows, changes.positions or (), strict=True):
            self.maps[row[MAP]] = place

    def add_requests(self, changes: EntryBatch) -> None:
        """As `add`, without `maps`; the batch needs no positions."""
        self.end = max(self.end, changes.last)
        for item in changes.metadata:
            self.metadata.setdefault(to_manifest(item))
        requests = self.requests
        for row in changes.rows:
            _, _, session, request = row[ORDER]
            if request > requests.get(session, 0):
                requests[session] = request

    def join(self, later: Summary) -> None:
        """Add the facts of segments that follow."""
        self.end = max(self.end, later.end)
        self.maps |= later.maps
        self.metadata |= later.metadata
        for session, request in later.requests.items():
            self.requests[session] = max(request, self.requests.get(session, 0))


def summarize(context: Context, scan: FileScan) -> Summary:
    """Read one segment and return its summary."""
    summary = Summary()
    for changes in read_scan(context, scan, positions=True):
        summary.add(changes)
    return summary


def outline(
    context: Context, scan: FileScan, upto: Position, maps: Iterable[str]
) -> Summary | None:
    """The summary of a segment that ends at or below `upto`, without decoding its entries; None
    for any other. The node's manifest must have the requests up to `upto`. `maps`: those that may
    have entries in it."""
    if (scan.epoch, scan.number) > upto[:2]:
        return None
    summary, last = Summary(), START
    for changes in read_scan(context, scan, ()):
        summary.add_requests(changes)
        if changes.bytes:  # it has entries
            last = changes.last
    if summary.end > upto:
        return None
    summary.maps = dict.fromkeys(maps, last) if last > START else {}
    return summary


def carried(
    manifest: NodeManifest, archived: tuple[int, int], summaries: Iterable[Summary]
) -> NodeManifest:
    """The manifest without the segments up to `archived`, with the facts to keep of them."""
    total = Summary(requests=dict(manifest.requests), end=manifest.checkpoint)
    for summary in summaries:
        total.join(summary)
    archived = max(manifest.archived, archived)
    return replace(
        manifest,
        archived=archived,
        requests=manifest.known_requests(total.requests),
        metadata=_carry([*manifest.metadata, *total.metadata]),
        checkpoint=total.end,
    )


def delete_segments(
    store: SegmentStore, node_folder: str, epoch: int, paths: Iterable[str]
) -> set[str]:
    """Delete segments that are archived or covered. Returns the deleted paths. `epoch`: the node's
    current one.

    On a storage that cannot append, fence segments and the newest segment are kept. Without the
    newest one, a copy of the folder made during the deletion could have no segments and look
    complete. (On other storages, the manifest names the newest segment.)"""
    retained: set[str] = set()
    if not store.capabilities.durable_append:
        listed = store.list(f"{node_folder}/wal")
        retained = layout.fences(listed, epoch) | {sorted_out(listed).newest}
    return dispose(store, [path for path in paths if path not in retained], f"{node_folder}/wal")


def to_manifest(item: Metadata) -> Metadata:
    """Metadata as JSON values. `imap_wal.read.file_scan.from_manifest` is the inverse."""
    return tuple(part.hex() if isinstance(part, bytes) else part for part in item)


def _carry(items: Iterable[Metadata]) -> tuple[Metadata, ...]:
    distinct = list(dict.fromkeys(tuple(item) for item in items))
    schemas = [item for item in distinct if item[0] == "schema"]
    others = [item for item in distinct if item[0] != "schema"]
    return (*schemas, *others[-MEMBERS_MAX:])
