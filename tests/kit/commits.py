"""A committer over a storage in memory, and its callers."""

from __future__ import annotations

from typing import Any

from imap_wal import format
from imap_wal.format import Frame
from imap_wal.segment.reader import SegmentReader
from imap_wal.write.committer import Committer
from imap_wal.write.ring import CommitRequest, RingBuffer
from storage_backends import SegmentStore
from tests.support import node_log, row, segments

WAL = "*/wal/*"


def committer(store: SegmentStore, slots: int = 64, **settings: Any) -> Committer:
    log = node_log(store, **{"segment_bytes": 1024 * 1024, "preallocate": False, **settings})
    return Committer(RingBuffer(slots, log.settings.ring_bytes), log)


def batch(
    request: int, count: int = 1, apply: Any = None, kind: int = format.ENTRIES, session: int = 1
) -> CommitRequest:
    return CommitRequest(
        [row(f"k{request}.{index}", "v", request + index) for index in range(count)],
        count,
        apply,
        kind,
        session,
        request + count - 1,
    )


def commit(target: Committer, each: CommitRequest) -> None:
    target.submit(each)
    target.wait(each)


def frames(store: SegmentStore) -> list[Frame]:
    return [
        frame
        for path in segments(store)
        for frame in SegmentReader(store, path).whole_frames()
        if frame.kind != format.CLEAN_SHUTDOWN
    ]
