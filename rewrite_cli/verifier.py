"""Reads every byte of a log and says, file by file, what is whole and what is not.

clean        all there
torn-tail    an incomplete last commit of the newest segment: a crash, nothing acknowledged is lost
corrupt      bytes changed or missing; `first_lost` is the first position that cannot be read
unsupported  written by a newer version
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from imap_wal.archive import checksum, read_archive, read_snapshot
from imap_wal.errors import LogError, ShortLog, UnsupportedVersion
from imap_wal.format import ENTRIES, START, Position
from imap_wal.pieces import ARCHIVE, SNAPSHOT, Piece
from imap_wal.segment import SegmentReader
from rewrite_cli.survey import ClusterView, NodeView, SegmentFile
from storage_backends import NotFound, SegmentStore

CLEAN, TORN, CORRUPT, UNSUPPORTED = "clean", "torn-tail", "corrupt", "unsupported"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one file. `offset`: of the first byte that is not whole. `first_lost`: the position of the first entry that cannot be read."""

    file: str
    kind: str
    status: str
    bytes: int = 0
    records: int = 0
    offset: int | None = None
    first_lost: str | None = None
    what: str = ""
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify_cluster(store: SegmentStore, view: ClusterView, wants_node: Callable[[str], bool], tell: Callable[[str], None]) -> Iterator[Finding]:
    """All files of a cluster, in order; a missing node is a finding about its folder."""
    yield Finding(f"{view.folder}/manifest/{view.manifest_number:010d}.json", "manifest", CLEAN)
    for name, snapshot in sorted(view.manifest.snapshots.items()):
        for path, wanted in zip_longest(snapshot.files, snapshot.checksums, fillvalue=0):
            tell(str(path))
            yield _parquet(store, Piece(SNAPSHOT, "", str(path), name), None, int(wanted))
    for name in view.missing_nodes:
        if wants_node(name):
            what = f"node {name!r} is registered with log directory {view.manifest.nodes[name]}, which is not here"
            yield Finding(
                f"{view.folder}/nodes/{name}", "node", CORRUPT, what=what, advice="bring its disk back, or restore with recovery_policy='partial'"
            )
    for node in view.nodes:
        if wants_node(node.name):
            yield from _node(store, view, node, tell)


def foreign_files(view: ClusterView, wants_node: Callable[[str], bool]) -> list[str]:
    """Files in nodes' folders that are not imap-wal's; they are left alone and harm nothing."""
    known = {archive.path for node in view.nodes for archive in node.manifest.archives}
    found = []
    for node in view.nodes:
        if not wants_node(node.name):
            continue
        segments = {segment.path for segment in node.segments}
        for file in node.files:
            rest = file.path.removeprefix(f"{node.folder}/")
            ours = file.path in segments | known or rest == "writer.lock" or (rest.startswith("manifest/") and rest.endswith(".json"))
            if not (ours or rest.endswith(".fenced") or (rest.startswith("archive/") and rest.endswith(".parquet"))):
                found.append(file.path)
    return found


def _node(store: SegmentStore, view: ClusterView, node: NodeView, tell: Callable[[str], None]) -> Iterator[Finding]:
    yield Finding(f"{node.folder}/manifest/{node.manifest_number:010d}.json", "manifest", CLEAN)
    for archive in node.manifest.archives:
        tell(archive.path)
        piece = Piece(ARCHIVE, node.name, archive.path, archive.map, first=archive.first, last=archive.last)
        yield _parquet(store, piece, archive.records, archive.checksum)
    newest_epoch = {segment.number: segment.epoch for segment in node.segments}  # sorted by epoch: the last one stays
    living = []
    for segment in (segment for segment in node.segments if not segment.archived):
        if segment.epoch < newest_epoch[segment.number]:
            yield Finding(segment.path, "segment", CLEAN, segment.bytes, what="begun by a writer that had been replaced: nothing in it counts")
        else:
            living.append(segment)
    expected = node.manifest.archived[1] + 1
    checksum: int | None = None
    for index, segment in enumerate(living):
        tell(segment.path)
        if segment.number > expected:
            lost = Position(segment.epoch, expected, 0, 0)
            missing = f"{node.folder}/wal/*-{expected:08d}.wal"
            yield Finding(
                missing,
                "segment",
                CORRUPT,
                0,
                0,
                0,
                str(lost),
                "this segment is missing: the log goes on after it",
                "bring the file back from a copy",
            )
            checksum = None
        expected = segment.number + 1
        finding, checksum = _segment(store, view, node, segment, index == len(living) - 1, checksum)
        yield finding
    if node.manifest.checkpoint.segment >= expected:
        missing = f"{node.folder}/wal/*-{expected:08d}.wal"
        lost = Position(node.manifest.checkpoint.epoch, expected, 0, 0)
        yield Finding(
            missing,
            "segment",
            CORRUPT,
            0,
            0,
            0,
            str(lost),
            "this segment is missing: the manifest names what it held",
            "bring the file back from a copy",
        )


def _segment(
    store: SegmentStore, view: ClusterView, node: NodeView, segment: SegmentFile, newest: bool, before: int | None
) -> tuple[Finding, int | None]:
    """The finding, and the checksum that the next segment's header must carry on (None: unknown)."""
    file, start = segment.path, str(Position(segment.epoch, segment.number, 0, 0))
    records, ended_at = 0, -1
    try:
        while True:
            reader = SegmentReader(store, file)
            records = sum(frame.count for frame in reader.frames() if frame.kind == ENTRIES)
            tail = reader.tail()
            if tail.status == CLEAN or not newest or tail.end == ended_at:
                break
            ended_at = tail.end  # perhaps a commit under way: damage stays where it is, a writer goes on
    except ShortLog as error:
        if newest and not node.manifest.clean:
            what = "the file ends inside its header: a crash before its first commit"
            return Finding(file, "segment", TORN, segment.bytes, 0, error.offset, start, what, "the next start cuts it off"), None
        return damaged(file, "segment", segment.bytes, error, start), None
    except LogError as error:
        lost = str(Position(segment.epoch, segment.number, error.offset, 0)) if error.offset >= 64 else start
        return damaged(file, "segment", segment.bytes, error, lost), None
    except NotFound:
        return Finding(file, "segment", CLEAN, 0, 0, what="archived while it was being verified"), None
    header = reader.header
    if (header.namespace, header.cluster, header.node) != (view.namespace, view.cluster, node.name) or (header.epoch, header.number) != (
        segment.epoch,
        segment.number,
    ):
        what = (
            f"its header says {header.namespace}/{header.cluster}/{header.node} {header.epoch}-{header.number}: the file was copied here or renamed"
        )
        return Finding(file, "segment", CORRUPT, segment.bytes, records, 0, start, what, "move it back to where it belongs"), None
    if before is not None and header.previous_checksum not in (0, before):
        what = "the segment before it does not end where this one says it did: its end was cut or exchanged"
        return Finding(
            file, "segment", CORRUPT, segment.bytes, records, 0, start, what, "bring the segment before it back from a copy"
        ), reader.checksum
    lost = str(Position(segment.epoch, segment.number, tail.end, 0))
    if tail.status == CORRUPT or (tail.status == TORN and not newest):
        what = (
            f"a damaged frame with {tail.frames_after} whole frames after it" if tail.frames_after else "a damaged frame where bytes had been synced"
        )
        return Finding(file, "segment", CORRUPT, segment.bytes, records, tail.end, lost, what, "bring the file back from a copy"), None
    if tail.status == TORN:
        what = "an incomplete last commit: a crash, nothing acknowledged is lost"
        return Finding(file, "segment", TORN, segment.bytes, records, tail.end, lost, what, "the next start cuts it off"), None
    return Finding(file, "segment", CLEAN, segment.bytes, records), reader.checksum


def _parquet(store: SegmentStore, piece: Piece, records: int | None, wanted: int) -> Finding:
    """`wanted`: the checksum that the manifest has of the whole file, 0 where it has none."""
    lost = str(piece.first) if piece.first > START else None
    try:
        size = store.size(piece.path)
        with store.open_input(piece.path) as file:
            if wanted and checksum(file) != wanted:
                what = "the file does not match the checksum that the manifest has of it"
                return Finding(piece.path, piece.kind, CORRUPT, size, 0, 0, lost, what, "bring it back from a copy")
        changes = read_archive(store, piece) if piece.kind == ARCHIVE else read_snapshot(store, piece)
        found = sum(len(batch.rows) for batch in changes)
    except NotFound:
        return Finding(
            piece.path, piece.kind, CORRUPT, 0, 0, 0, lost, "the manifest names this file, and it is not there", "bring it back from a copy"
        )
    except LogError as error:
        return damaged(piece.path, piece.kind, size, error, lost)
    if records is not None and found != records:
        return Finding(
            piece.path, piece.kind, CORRUPT, size, found, None, lost, f"{found} records, the manifest says {records}", "bring it back from a copy"
        )
    return Finding(piece.path, piece.kind, CLEAN, size, found)


def damaged(file: str, kind: str, size: int, error: LogError, lost: str | None) -> Finding:
    """From what a reader raised."""
    status = UNSUPPORTED if isinstance(error, UnsupportedVersion) else CORRUPT
    advice = str(error).removeprefix(f"{error.file} at byte {error.offset}: {error.what}; ")
    return Finding(file, kind, status, size, 0, error.offset, lost, error.what, advice)
