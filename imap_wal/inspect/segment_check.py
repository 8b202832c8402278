"""Reads one segment, and reports what of it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, NamedTuple

import google_crc32c

from imap_wal.contents import DIFFERS
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, EncryptionError, LogError
from imap_wal.format import OF_ENTRIES, START, Frame, Home, Position
from imap_wal.inspect.finding import (
    ADVICE,
    CLEAN,
    CORRUPT,
    CUT,
    TORN,
    UNSUPPORTED,
    Deadline,
    Finding,
    damaged,
)
from imap_wal.manifest import missing
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.parquet.salvage import count_readable
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.scan import demand_entries, row_counts
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.segment.listing import SegmentFile
from imap_wal.segment.salvage import last_lost, scan_segment
from imap_wal.segment.verdict import FOREIGN, HEADER_TORN, SHORT, Verdict, judge, said_by
from storage_backends import NotFound

NAMED_MAX = 100
"""The number of invalid entries of a segment that a finding names."""


class _Read(NamedTuple):
    """The result of reading a segment. `wrong`: its entries with invalid content. `unread`: why it
    was not decrypted."""

    verdict: Verdict
    records: int
    wrong: list[str]
    unread: EncryptionError | None


def _read_segment(
    context: Context,
    view: ClusterState,
    node: NodeState,
    segment: SegmentFile,
    later: Sequence[SegmentFile],
    deadline: Deadline,
) -> _Read:
    manifest = node.manifest
    place = view.place(node, manifest, segment, followed=bool(later))
    # All frames, without a gap.
    paths = [
        after.path
        for index, after in enumerate(later)
        if after.number == segment.number + 1 + index
    ]
    said = partial(said_by, context.store, manifest.directory, paths)
    records, ended_at = 0, -1
    wrong: list[str] = []
    unread: EncryptionError | None = None

    def count(frame: Frame) -> None:
        nonlocal records
        deadline.check()
        records += frame.count if frame.kind in OF_ENTRIES else 0

    def visit(frame: Frame) -> None:
        count(frame)
        if frame.kind in OF_ENTRIES:
            wrong.extend(_wrong_entries(segment, frame))

    while True:
        records = 0
        wrong.clear()
        try:
            verdict, reader = judge(context.store, place, visit, said, keys=context.keys)
        except EncryptionError as error:
            unread, records = error, 0
            verdict, reader = judge(context.store, place, count, said, keys=None)
        # Only torn and corrupt ends can be frames that were being written: forged ones are whole.
        of_tail = not later and verdict.status in (TORN, CORRUPT)
        if of_tail and reader is not None and reader.has_more():
            verdict = Verdict(CLEAN, place, verdict.end, verdict.size)
        if verdict.status == CLEAN or later or verdict.end == ended_at:
            return _Read(verdict, records, wrong, unread)
        # Perhaps a commit is under way: then the segment's end moves, but damage does not.
        ended_at = verdict.end


def check_segment(
    context: Context,
    view: ClusterState,
    node: NodeState,
    segment: SegmentFile,
    later: Sequence[SegmentFile],
    deadline: Deadline,
) -> Finding:
    finding = Finding(segment.path, "segment", CLEAN, segment.bytes)
    try:
        read = _read_segment(context, view, node, segment, later, deadline)
    except NotFound:
        return replace(finding, bytes=0, what="archived while it was being verified")
    verdict, records, wrong = read.verdict, read.records, read.wrong
    if read.unread is not None and verdict.status in (CLEAN, TORN, CORRUPT):
        return _not_opened(finding, read.unread, verdict, records)
    if verdict.status == CLEAN and wrong:
        more = [f"and {len(wrong) - NAMED_MAX} more"] if len(wrong) > NAMED_MAX else []
        return replace(
            finding,
            status=CORRUPT,
            records=records,
            what="; ".join(wrong[:NAMED_MAX] + more),
            advice="bring the file back from a copy, or restore a backup",
        )
    if verdict.status == CLEAN:
        return replace(finding, records=records)
    finding = replace(
        finding,
        offset=verdict.end,
        first_lost=str(verdict.lost),
        what=verdict.what,
        advice=verdict.advice,
    )
    if verdict.status == UNSUPPORTED:
        return replace(finding, status=UNSUPPORTED)
    if verdict.status == FOREIGN:
        return replace(finding, status=CORRUPT)
    if verdict.is_tail:
        finding = replace(finding, status=TORN, advice=CUT)
        return (
            finding
            if verdict.status == HEADER_TORN
            else _lost(finding, segment, context, view.home(node, segment))
        )
    finding = replace(finding, status=CORRUPT, advice=ADVICE)
    if verdict.status == SHORT and verdict.end:
        named = node.manifest.checkpoint
        last = str(named) if named[:2] == (segment.epoch, segment.number) else None
        return replace(finding, records=records, last_lost=last)
    return _lost(finding, segment, context, view.home(node, segment))


def _not_opened(
    finding: Finding, error: EncryptionError, verdict: Verdict, records: int
) -> Finding:
    """The finding about an encrypted file that the keys do not decrypt. If the key is missing, only
    the checksums were verified, and `reason` says so. It is damage if another key has the file's
    key id, or if the file is not encrypted although the keys require it."""
    reason = error.what
    if verdict.status != CLEAN:
        finding = replace(
            finding,
            offset=verdict.end,
            first_lost=str(verdict.lost),
            frames_after=verdict.frames_after,
        )
        reason = f"{verdict.what}; {reason}"
    if verdict.is_damage or not error.is_missing:
        return replace(finding, status=CORRUPT, records=records, what=reason, advice=error.advice)
    if verdict.is_tail:
        return replace(
            finding, status=TORN, records=records, what=reason, advice=CUT, unopened=True
        )
    return replace(finding, records=records, what=reason, unopened=True)


def _wrong_entries(segment: SegmentFile, frame: Frame) -> list[str]:
    """What is wrong with an undamaged frame that has an invalid entry: another program wrote it."""
    try:
        demand_entries(
            segment.path, Position(segment.epoch, segment.number, frame.offset, 0), frame
        )
    except CorruptLog as error:
        return [error.what]
    return []


def _lost(finding: Finding, segment: SegmentFile, context: Context, home: Home) -> Finding:
    """Add the known facts about damaged frames. `records` are those that `repair` can read."""
    try:
        scan = scan_segment(context, segment.path, home)
    except EncryptionError as error:
        return replace(finding, what=f"{finding.what}; {error.what}")
    gaps = scan.gaps
    counted = all(gap.records is not None for gap in gaps)
    last = last_lost(segment.epoch, segment.number, gaps[-1]) if gaps else None
    after = (
        sum(frame.offset >= gaps[0].start for frame in scan.frames) if gaps else len(scan.frames)
    )
    return replace(
        finding,
        records=scan.records,
        last_lost=str(last) if last is not None else None,
        frames_after=after,
        lost_records=sum(gap.records or 0 for gap in gaps) if counted else None,
    )


# Reads one archive or one file of a snapshot, and decides whether it is whole.

CHUNK_BYTES = 4 * 1024 * 1024


def check_parquet(
    context: Context, scan: FileScan, records: int | None, checksum: int, deadline: Deadline
) -> Finding:
    """`checksum`: the checksum of the whole file in the manifest; 0: the manifest has none."""
    finding = Finding(scan.path, scan.kind, CORRUPT, advice=ADVICE)
    if scan.first > START:
        finding = replace(
            finding, first_lost=str(scan.first), last_lost=str(scan.last), lost_records=records
        )
    try:
        finding = replace(finding, bytes=context.store.size(scan.path))
        with context.store.open_input(scan.path) as file:
            crc = _checksum(file, deadline) if checksum else 0
        if crc != checksum:
            return _readable(context, replace(finding, offset=0, what=DIFFERS), scan, records)
        count = 0
        for rows in row_counts(context, scan):
            count += rows
            deadline.check()
    except NotFound:
        lost = _still_named(context, scan)
        if lost is None:
            reason = "merged or removed while it was being verified"
            return Finding(scan.path, scan.kind, CLEAN, what=reason)
        return replace(finding, offset=0, what=lost.what)
    except EncryptionError as error:
        if checksum and error.is_missing:
            return Finding(
                scan.path,
                scan.kind,
                CLEAN,
                finding.bytes,
                records or 0,
                what=error.what,
                unopened=True,
            )
        return replace(finding, offset=0, what=error.what, advice=error.advice)
    except LogError as error:
        said = damaged(scan.path, scan.kind, finding.bytes, error, None)
        return _readable(
            context,
            replace(
                finding, status=said.status, offset=said.offset, what=said.what, advice=said.advice
            ),
            scan,
            records,
        )
    if records is not None and count != records:
        return replace(
            finding,
            records=count,
            lost_records=records - count,
            what=f"{count} records, but the manifest says {records}",
        )
    return Finding(scan.path, scan.kind, CLEAN, finding.bytes, count)


def _checksum(file: BinaryIO, deadline: Deadline) -> int:
    crc = 0
    while data := file.read(CHUNK_BYTES):
        crc = google_crc32c.extend(crc, data)
        deadline.check()
    return crc


def _still_named(context: Context, scan: FileScan) -> LogError | None:
    """The error for a missing file that the manifest, read again, still names. None if it does not
    name it."""
    folders = scan.path.split("/")
    if scan.kind == ARCHIVE:
        manifests = NodeManifestLog(context, "/".join(folders[:4]))
        return missing.archive(scan.path, scan.node, manifests.read()[1])
    clusters = ClusterManifestLog(context, "/".join(folders[:2]))
    return missing.snapshot_file(scan.path, clusters.read()[1])


def _readable(context: Context, finding: Finding, scan: FileScan, records: int | None) -> Finding:
    """Add the facts about the part of a damaged file that `repair` can read."""
    try:
        readable = count_readable(
            context, scan.path, log=scan.directory if scan.kind == ARCHIVE else None
        )
    except EncryptionError as error:
        return replace(finding, what=f"{finding.what}; {error.what}")
    return replace(
        finding,
        records=readable.records,
        lost_records=readable.lost if records is None else records - readable.records,
    )
