"""Reads one archive or one file of a snapshot, and decides whether it is whole."""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO

import google_crc32c

from imap_wal.context import Context
from imap_wal.errors import EncryptionError, LogError
from imap_wal.format import START
from imap_wal.inspect.finding import (
    ADVICE,
    CLEAN,
    CORRUPT,
    Deadline,
    Finding,
    damaged,
)
from imap_wal.manifest import missing
from imap_wal.manifest.cluster import cluster_manifests
from imap_wal.manifest.node import node_manifests
from imap_wal.parquet.salvage import count_readable
from imap_wal.read.file_scan import ARCHIVE, FileScan
from imap_wal.read.scan import read_scan
from storage_backends import NotFound

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
            damage = "the file does not match the checksum in the manifest"
            return _readable(context, replace(finding, offset=0, what=damage), scan, records)
        count = 0
        for batch in read_scan(context, scan):
            count += len(batch.rows)
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
    store, clock, randomness = context.store, context.clock, context.randomness
    if scan.kind == ARCHIVE:
        manifests = node_manifests(store, "/".join(folders[:4]), clock, randomness)
        return missing.archive(scan.path, scan.node, manifests.read()[1])
    clusters = cluster_manifests(store, "/".join(folders[:2]), clock, randomness)
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
