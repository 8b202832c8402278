"""The repair of one node's log: `plan` reads all of it and decides about each file, `write` writes
the copy.

Archives come before segments in a node's log. After damage in an archive, a point-in-time repair
keeps only older entries of the other archives, and no segment. Segments keep their numbers. A
segment of which nothing is kept is empty in the copy.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from imap_wal import entry, format, layout
from imap_wal.entry import ORDER, Row, is_shared
from imap_wal.errors import EncryptionError, UnsupportedVersion
from imap_wal.format import START, Position
from imap_wal.inspect import older_manifests
from imap_wal.manifest.evidence import Evidence
from imap_wal.manifest.list_files import Listed, ListFile
from imap_wal.manifest.node import NOTHING_SEEN, NodeManifest
from imap_wal.parquet import salvage
from imap_wal.read.state import NodeState
from imap_wal.repair.node_archives import ArchivePlanner
from imap_wal.repair.node_plan import NodePlan, Write
from imap_wal.repair.node_segments import SegmentPlanner
from imap_wal.repair.report import COPIED, GIVEN_UP, REWRITTEN, Extent, Item
from imap_wal.repair.strangers import without_strangers
from imap_wal.security.encryption import cipher_of
from imap_wal.segment.salvage import scan_segment
from storage_backends import SegmentStore


class Highest(NamedTuple):
    """The highest incarnation, and the highest session that its node has numbered, in the orders of
    entries."""

    incarnation: int = 0
    session: int = 0

    def with_row(self, row: Row) -> Highest:
        incarnation, _, session, _ = row[ORDER]
        return self.up_to(Highest(incarnation, 0 if is_shared(row[ORDER]) else session))

    def up_to(self, other: Highest) -> Highest:
        """The higher values of both, field by field."""
        return Highest(max(self.incarnation, other.incarnation), max(self.session, other.session))


class NodeRepair:
    """See the module's docstring. `lost_manifests`: how many newer manifests cannot be read."""

    def __init__(self, plan: NodePlan, lost_manifests: int = 0) -> None:
        self._plan, self._lost_manifests = plan, lost_manifests
        self._evidence = Evidence(0)
        self.highest = Highest()
        """The highest numbers in entries; filled if an older manifest is used."""

    @property
    def node(self) -> NodeState:
        return self._plan.node

    @property
    def items(self) -> list[Item]:
        """The decision for each file."""
        return self._plan.items

    def plan(self, *, look_at_entries: bool = False) -> None:
        """Read everything, and fill `items`. `look_at_entries`: fill `highest` in any case. Raises
        `UnsupportedVersion` if a newer version wrote the log; then nothing is damaged."""
        archives = ArchivePlanner(self._plan)
        plan = self._plan
        plan.manifest = replace(plan.node.manifest, archives=Listed(plan.node.archives))
        self._put_strangers_aside()
        self._evidence = older_manifests.of_node(
            plan.node, plan.manifest, plan.view.manifest, plan.view.opened
        )
        plan.changed = self.older or bool(plan.node.damaged_lists)
        archives.find_again()
        if self.older:
            # Both refer to the segments of another history of this log, not to these files.
            self._plan.manifest = replace(self._plan.manifest, begins=(0, 0), epochs=())
            archives.adopt()
        below = archives.decide()
        SegmentPlanner(self._plan).decide(given_up=below is not None)
        if self.older or look_at_entries:
            self._look_at_entries()
        self._plan_manifest()

    def _put_strangers_aside(self) -> None:
        plan, manifest = self._plan, self._plan.manifest
        numbers = manifest.archived[1], manifest.newest, manifest.checkpoint.segment
        newest = max(*numbers, *(mark.segment for mark in plan.marks()))
        plan.node, strangers = without_strangers(plan.context, plan.view, plan.node, newest)
        for segment, why in strangers.items():
            reason = f"{why}; its bytes are kept in {plan.put_aside(segment)}"
            lost = Extent(bytes=segment.bytes)
            plan.items.append(
                Item(segment.path, "segment", "corrupt", GIVEN_UP, given_up=lost, what=reason)
            )

    @property
    def older(self) -> bool:
        """Whether the manifest in use is older than the files: the newer manifests are lost."""
        return self._lost_manifests > 0 or bool(self._evidence.newer)

    @property
    def number(self) -> int:
        """The number of the node's manifest in the copy."""
        return self._plan.node.number + self._lost_manifests + self._plan.changed

    @property
    def wal_id(self) -> str:
        """The id of the log, for the copy's folder of segments; "" if the manifest has none."""
        return self._plan.manifest.wal_id

    @property
    def manifest(self) -> NodeManifest | None:
        """The copy's manifest; None: the log's manifest is copied. Complete after `write`."""
        return self._plan.manifest if self._plan.changed else None

    @property
    def removed(self) -> Position:
        """The position in the copy above which it has all entries that are not given up."""
        return self._plan.manifest.removed

    @property
    def lists(self) -> tuple[ListFile, ...]:
        """The list files that the copy has: those of a manifest that is copied."""
        return () if self._plan.changed else self._plan.node.manifest.archives.lists

    def position(self, place: Position) -> Position:
        """The position in the copy for a position of this log."""
        return self._plan.position(place)

    def write(self, target: SegmentStore) -> None:
        """Write archives, their lists and segments; the caller writes the manifests later."""
        _write_files(self._plan, target)
        for file in self.lists:
            path = layout.list_path(self.node.folder, file.name)
            target.create(path, self._plan.store.read(path))

    # ---- the manifest ----

    def _plan_manifest(self) -> None:
        name = f"{self._plan.node.folder}/manifest/{self._plan.node.number:010d}.json"
        if not self._plan.changed:
            self._plan.items.append(Item(name, "manifest", "clean", COPIED))
            self._plan.items += [
                Item(layout.list_path(self.node.folder, file.name), "list", "clean", COPIED)
                for file in self.lists
            ]
            return
        manifest = self._plan.manifest
        # That of an older manifest may be of another history, and name no frame of this one.
        checkpoint = (
            START if self.older else min(self._plan.position(manifest.checkpoint), self._plan.end)
        )
        if checkpoint == START or checkpoint.segment <= manifest.archived[1]:
            checkpoint = max(
                checkpoint, min(manifest.checkpoint, Position(*manifest.archived, 0, 0))
            )
        # Each lost manifest may have assigned an epoch and a session that are in no file name.
        self._plan.manifest = replace(
            manifest,
            archives=Listed(archive for archive, *_ in self._plan.archives),
            checkpoint=checkpoint,
            removed=self._plan.position(manifest.removed),
            clean=False,
            epoch=max(manifest.epoch + self._lost_manifests, self._evidence.epoch),
            session=max(manifest.session + self._lost_manifests, self.highest.session),
            newest=self._plan.newest,
            epochs=self._plan.epochs(),
            begins=(0, 0),  # the copy has only what counts, and no replaced writer writes there
            cluster=NOTHING_SEEN,
        )
        status, lost, reason = self._about_manifest()
        to = f"{self._plan.node.folder}/manifest/{self.number:010d}.json"
        self._plan.items.append(
            Item(name, "manifest", status, REWRITTEN, given_up=lost, what=reason, to=to)
        )

    def _about_manifest(self) -> tuple[str, Extent | None, str]:
        """For the report: the state of the manifest, what is lost with it, and a text."""
        if self._lost_manifests:
            reason = (
                f"the newest manifest cannot be read; number {self._plan.node.number} is "
                "used in its place, with the files beside it"
            )
            return "corrupt", Extent(), reason
        if self._evidence.newer:
            reason = (
                f"this manifest is older than the files beside it ({self._evidence.newer}); the "
                "copy has the entries of these files"
            )
            return "corrupt", Extent(), reason
        reason = (
            "changed to fit the files that are kept; the next open reads the log from the "
            "checkpoint on"
        )
        return "clean", None, reason

    def _look_at_entries(self) -> None:
        """Fill `highest` from all entries that can be read."""
        highest = self.highest
        for archive, *_ in self._plan.archives:
            for row in salvage.rows_of(
                self._plan.context,
                self._plan.sources.get(archive.path, archive.path),
                log=self._plan.manifest.directory,
            ):
                highest = highest.with_row(row)
        for segment in self._plan.wal().segments:
            with suppress(UnsupportedVersion, EncryptionError):  # the latter was put aside
                scan = scan_segment(
                    self._plan.context, segment.path, self._plan.view.home(self._plan.node, segment)
                )
                data = self._plan.store.read(segment.path)
                for place in scan.frames:
                    if place.kind in format.OF_ENTRIES:
                        for row in _readable(scan.payload(data, place), place.count):
                            highest = highest.with_row(row)
        self.highest = highest


def _readable(payload: bytes, count: int) -> list[Row]:
    """The entries of a frame that a reader accepts; a repair does not report another frame."""
    try:
        return entry.decoded(payload, count)
    except ValueError:
        return []


# ---- the files of the copy ----


def _write_files(plan: NodePlan, target: SegmentStore) -> None:
    """Write all files but the manifest, and complete the manifest in the plan."""
    archives = []
    for archive, below, rewritten in plan.archives:
        plan.tell(archive.path)
        if rewritten:
            source = plan.sources.get(archive.path, archive.path)
            size, crc = salvage.rewrite_file(
                plan.context,
                source,
                target,
                archive.path,
                log=plan.manifest.directory,
                below=below,
            )
            archives.append(replace(archive, bytes=size, checksum=crc))
        else:
            salvage.copy_file(plan.store, archive.path, target)
            archives.append(archive)
    plan.manifest = replace(plan.manifest, archives=Listed(archives))
    for write in plan.writes:
        plan.tell(write.path)
        target.create(write.path, _content(plan, write))


def _content(plan: NodePlan, write: Write) -> bytes:
    if not write.source:
        return write.head
    data = plan.store.read(write.source)
    scan = write.scan
    if scan is None:
        return write.head + data[len(write.head) : write.until]
    chunks, offset = [write.head], len(write.head)
    for frame in write.places:
        payload = [scan.payload(data, frame)]
        encoded, length = _frame_of(
            plan, write.head, write.path, offset, frame.kind, frame.count, payload
        )
        chunks += encoded
        offset += length
    return b"".join(chunks)


def _frame_of(
    plan: NodePlan, head: bytes, path: str, offset: int, kind: int, count: int, payload: list[bytes]
) -> tuple[list[bytes], int]:
    """The chunks of a frame in a segment with that header, and their length. Raises the errors of
    `decode_header`, `EncryptionError` if its key is missing, and `TooLarge`."""
    header, _ = format.decode_header(head, path)
    keys = plan.context.keys
    cipher = cipher_of(keys, header, head, path, plan.randomness) if header.key_id else None
    if cipher is not None:
        payload = cipher.seal(offset, kind, count, offset, payload)
    # All bytes before the frame are durable when the file appears: damage there is corruption.
    chunks, length, _ = format.encode_frame(
        header.checksum_seed, offset, kind, count, offset, payload
    )
    return chunks, length
