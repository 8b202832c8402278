"""The plan of a repair for one node's log: what the copy has of each file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from imap_wal.clock import Randomness
from imap_wal.context import Context
from imap_wal.format import START, Position, SegmentHeader, epoch_id
from imap_wal.manifest.epochs import Epoch, forked, ids, segment_id
from imap_wal.manifest.list_files import Archive
from imap_wal.manifest.node import NodeManifest
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.repair.report import Item
from imap_wal.repair.segment import Segment
from imap_wal.security.encryption import sealed
from imap_wal.segment.listing import SegmentFile, WalFolder, sorted_out
from imap_wal.segment.salvage import Scan, WholeFrame
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class Write:
    """How a segment is written into the copy. `places`: the frames of the original that remain in a
    rewritten segment."""

    path: str
    head: bytes = b""
    """It replaces as many bytes at the start of the original; b"" replaces nothing."""
    source: str = ""
    until: int | None = 0
    """The original is copied from the end of `head` up to this offset; None: up to its end."""
    places: tuple[WholeFrame, ...] = ()
    scan: Scan | None = None
    """The frames of the original, if it is rewritten."""


@dataclass
class NodePlan:
    """`node_archives` and `node_segments` fill it; `NodeRepair` writes it."""

    context: Context
    view: ClusterState
    node: NodeState
    mode: str
    tell: Callable[[str], None]
    items: list[Item] = field(default_factory=list)
    archives: list[tuple[Archive, Position | None, bool]] = field(default_factory=list)
    """The archives of the copy. For each: the position below which entries are kept (None: all
    entries), and whether the file is rewritten."""
    sources: dict[str, str] = field(default_factory=dict)
    """The path of a rewritten archive in the copy → its path in the log."""
    writes: list[Write] = field(default_factory=list)
    moved: dict[tuple[int, int], list[tuple[Position, Position]]] = field(default_factory=dict)
    """For each rewritten segment: the old and the new positions of the frames that are kept."""
    cut: dict[tuple[int, int], Position] = field(default_factory=dict)
    """For each segment whose end is missing: its last frame."""
    end: Position = START
    """The last position of the copy."""
    newest: int = 0
    """The number of the copy's last segment."""
    changed: bool = False
    """The copy gets a new manifest."""
    shared: Position | None = None
    """Up to here, the copy has the entries of the log at their positions; None: it has all."""
    _epoch_ids: dict[int, str] = field(default_factory=dict)
    _others: set[tuple[int, str]] = field(default_factory=set)
    manifest: NodeManifest = field(default_factory=NodeManifest)

    @property
    def store(self) -> SegmentStore:
        return self.context.store

    @property
    def randomness(self) -> Randomness:
        return self.context.randomness

    def wal(self) -> WalFolder:
        """The segments of the log, as the current manifest in this plan sorts them."""
        return sorted_out(
            (file for file in self.node.files if file.path.startswith(f"{self.node.folder}/wal/")),
            self.manifest.archived,
            self.manifest.begins,
        )

    def marks(self) -> list[Position]:
        """The positions up to which snapshots cover this log."""
        return [*self.view.manifest.marks(self.node.name, self.node.manifest).values()]

    def put_aside(self, segment: SegmentFile) -> str:
        """Keep the bytes of a file that does not belong to this log. Returns their path in the
        copy."""
        aside = f"{self.node.folder}/lost/{segment.path.rpartition('/')[2]}.foreign"
        self.writes.append(Write(aside, source=segment.path, until=None))
        return aside

    def differs(self, first: Position) -> None:
        """Note that the copy differs from the log from this position on."""
        self.shared = first if self.shared is None else min(self.shared, first)

    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs of the copy."""
        epochs = self.manifest.epochs
        if self.shared is None:
            return epochs
        copied = forked(epochs, self.shared, self._new_id)
        # Segments whose id the manifest does not have, and then those whose epoch was guessed
        # because they are missing: new segments have the last id.
        more = [
            Epoch(number, id, self.shared)
            for number, id in (*sorted(self._others), *self._epoch_ids.items())
            if id not in ids(copied, number)
        ]
        return tuple(sorted((*copied, *more), key=lambda epoch: epoch.number))

    def keeps(self, header: SegmentHeader) -> None:
        """Note that the copy has a segment unchanged. The segment may be from another copy of the
        log, which was written too; its entries are kept. Or the manifest is older than it, and does
        not have its epoch."""
        epoch_ids = ids(self.manifest.epochs, header.epoch)
        if header.epoch_id not in epoch_ids:
            self._others.add((header.epoch, header.epoch_id))
            if epoch_ids:
                self.changed = True
                self.differs(Position(header.epoch, header.number, 0, 0))

    def _new_id(self, epoch: int) -> str:
        return self._epoch_ids.setdefault(epoch, epoch_id(self.randomness.token()))

    def segment_id(self, epoch: int) -> bytes:
        """The random id of a segment that the copy has in a changed form."""
        new = (Epoch(epoch, self._new_id(epoch)),)
        return segment_id(new, epoch, self.randomness.token())

    def position(self, place: Position) -> Position:
        """The position in the copy for a position of the log: that of the last kept entry at or
        below it in the same segment."""
        frames = self.moved.get(place[:2])
        if frames is None:
            return min(place, self.cut.get(place[:2], place))
        below = [pair for pair in frames if pair[0].frame <= place.frame]
        if not below:
            return place._replace(frame=0, index=0)
        old, new = below[-1]
        return new._replace(index=place.index) if old.frame == place.frame else new

    def header(self, segment: Segment) -> bytes:
        """A new header for a segment of the copy."""
        view, manifest = self.view, self.manifest
        created_ms = (
            segment.header.created_ms if segment.header is not None else self.context.clock.now_ms()
        )
        header = SegmentHeader(
            self.segment_id(segment.epoch),
            view.namespace,
            view.cluster,
            self.node.name,
            segment.epoch,
            segment.number,
            0,
            created_ms,
            manifest.directory,
        )
        return sealed(self.context.keys.key_ring, header, self.randomness)[0].encode()
