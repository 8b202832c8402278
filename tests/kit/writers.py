"""The log of one node, written by a test."""

from __future__ import annotations

from imap_wal import format
from imap_wal.context import Context
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from tests.support import IDENTITY, row


def write(log: NodeLog, *requests: int) -> None:
    for request in requests:
        log.write(format.ENTRIES, 1, [row(f"k{request}", "v", request)])
        log.sync()


def manifest(store: SegmentStore) -> NodeManifest:
    return NodeManifestLog(Context(store), IDENTITY.node_folder).read()[1]
