"""Writes the archives and segments of a node's plan into the copy."""

from __future__ import annotations

from dataclasses import replace

from imap_wal import format
from imap_wal.parquet import salvage
from imap_wal.repair.node_plan import NodePlan, Write
from imap_wal.security.encryption import cipher_of
from storage_backends import SegmentStore


def write(plan: NodePlan, target: SegmentStore) -> None:
    """Write all files but the manifest, and complete the manifest in the plan."""
    archives = []
    for archive, below, rewritten in plan.archives:
        plan.tell(archive.path)
        if rewritten:
            source = plan.sources.get(archive.path, archive.path)
            size, crc = salvage.rewrite_file(
                plan.store,
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
    plan.manifest = replace(plan.manifest, archives=tuple(archives))
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
        encoded, length = frame_of(
            plan, write.head, write.path, offset, frame.kind, frame.count, payload
        )
        chunks += encoded
        offset += length
    return b"".join(chunks)


def frame_of(
    plan: NodePlan, head: bytes, path: str, offset: int, kind: int, count: int, payload: list[bytes]
) -> tuple[list[bytes], int]:
    """The chunks of a frame in a segment with that header, and their length. Raises the errors of
    `decode_header`, `EncryptionError` if its key is missing, and `TooLarge`."""
    header, _ = format.decode_header(head, path)
    cipher = cipher_of(plan.store, header, head, path, plan.randomness) if header.key_id else None
    if cipher is not None:
        payload = cipher.seal(offset, kind, count, offset, payload)
    # All bytes before the frame are durable when the file appears: damage there is corruption.
    chunks, length, _ = format.encode_frame(
        header.checksum_seed, offset, kind, count, offset, payload
    )
    return chunks, length
