"""The schemas of a log: what shows keys and values of Compact classes in readable form."""

from __future__ import annotations

from collections.abc import Iterable

from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, Metadata, from_manifest
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState


def known_schemas(state: ClusterState) -> tuple[Metadata, ...]:
    """Those in the manifests of all nodes."""
    return _schemas(
        from_manifest(item) for node in state.nodes.values() for item in node.manifest.metadata
    )


def schemas_of(log: ClusterLog, state: ClusterState) -> tuple[Metadata, ...]:
    """Those of all nodes: of their manifests, and of their segments, whose entries are not decoded.
    Raises `NotFound`, `CorruptLog`."""
    scans = cluster_scans(state, snapshots=False, covered=True)
    stored = (
        item
        for scan in scans
        if scan.kind == SEGMENT
        for changes in read_scan(log.context, scan, ())
        for item in changes.metadata
    )
    return _schemas((*known_schemas(state), *stored))


def _schemas(metadata: Iterable[Metadata]) -> tuple[Metadata, ...]:
    return tuple(item for item in dict.fromkeys(metadata) if item[0] == "schema")
