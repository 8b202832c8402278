"""The log of one node, written by a test."""

from __future__ import annotations

from imap_wal import format
from imap_wal.clock import SeededRandomness
from imap_wal.manifest.node import NodeManifest, node_manifests
from imap_wal.write.node_log import NodeLog
from storage_backends import SegmentStore
from tests.support import IDENTITY, FakeClock, row


def write(log: NodeLog, *requests: int) -> None:
    for request in requests:
        log.write(format.ENTRIES, 1, [row(f"k{request}", "v", request)])
        log.sync()


def manifest(store: SegmentStore) -> NodeManifest:
    return node_manifests(store, IDENTITY.node_folder, FakeClock(), SeededRandomness(1)).read()[1]
