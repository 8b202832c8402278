"""Examines what a restore will read, before an open writes anything. It finds

    missing nodes and segments   in the manifests and listings
    missing archives, snapshots  in the listings
    Parquet files                if pyarrow is not installed
    keys that do not fit         in the header or footer of each file, if the log is encrypted and
                                 the list of keys lacks one that this log has used

No entry is read. So the restore finds damage inside of a file only after the open.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from imap_wal.arrow_library import demand_installed
from imap_wal.errors import LogError
from imap_wal.manifest import key_checks
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import SEGMENT, FileScan
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.snapshot import is_segment, open_segment
from imap_wal.settings import RecoveryMode, Settings
from storage_backends import NotFound


def prove_restore(log: ClusterLog, node: str, settings: Settings) -> None:
    """Raise the error with which a restore would fail, as far as it is known without reading
    entries. `node`: the node whose log is being opened; the open itself examines its segments after
    the checkpoint, and may continue without missing ones. Raises `MissingNode`, `LogError` and
    `EncryptionError`."""
    for attempt in range(ATTEMPTS):
        try:
            state = _state(log, node, settings)
            if state is not None:
                scans = cluster_scans(state, metadata=False)
                files = [scan for scan in scans if scan.kind != SEGMENT]
                _demand_library(files)
                _demand_there(log, files)
                others = [scan for scan in scans if not _examined(scan, state, node)]
                _demand_keys(log, state.manifest, others)
            return
        except NotFound as error:  # archived or pruned since
            if attempt == ATTEMPTS - 1:
                raise log.lost(error) from error


def _state(log: ClusterLog, node: str, settings: Settings) -> ClusterState | None:
    """The state to read; None: it is not known yet, because the open will give up damaged parts."""
    try:
        state = log.state()
    except LogError:
        if settings.recovery_mode is RecoveryMode.POINT_IN_TIME:
            return None
        raise
    others = {name: why for name, why in state.missing.items() if name != node}
    return replace(state, missing=others).demand(settings.recovery_policy)


def _demand_library(scans: list[FileScan]) -> None:
    """Raises `MissingLibrary` if one of these files is Parquet, and pyarrow is not installed."""
    parquet = next((scan.path for scan in scans if not is_segment(scan.path)), "")
    if parquet:
        demand_installed(f"{parquet} is a Parquet file")


def _demand_there(log: ClusterLog, scans: list[FileScan]) -> None:
    """Raises `NotFound` for a missing archive or file of a snapshot."""
    folders = {
        f"{log.node_folder(scan.node)}/archive" if scan.node else f"{log.folder}/snapshot"
        for scan in scans
    }
    there = {file.path for folder in sorted(folders) for file in log.store.list(folder)}
    for scan in scans:
        if scan.path not in there and not log.store.exists(scan.path):
            raise NotFound("the file is missing", scan.path)


def prove_keys(log: ClusterLog, node: str = "") -> None:
    """Raises `EncryptionError` for a file of this log that these keys cannot open: keys are entered
    into the manifest of a log only if they can read the log. `node`: examine the files of this node
    only. Files that are damaged, missing or covered by snapshots are not reported."""
    manifest, nodes = log.manifest(), {}
    if _fit_all(log, manifest):
        return
    for name in [node] if node else manifest.nodes:
        with suppress(LogError):
            nodes[name] = log.node(name)
    state = ClusterState(manifest, nodes, {})
    scans = [
        scan for scan in cluster_scans(state, metadata=False) if not _examined(scan, state, node)
    ]
    _demand_keys(log, manifest, scans)


def _demand_keys(log: ClusterLog, manifest: ClusterManifest, scans: list[FileScan]) -> None:
    if _fit_all(log, manifest):
        return
    for scan, context in ahead(log.context, scans):
        with suppress(LogError, NotFound):
            if scan.kind == SEGMENT:
                SegmentReader(context.store, scan.path).check_keys(context.keys)
            elif is_segment(scan.path):
                with context.store.open_input(scan.path) as file:
                    open_segment(file, scan.path, context.keys)
            else:
                from imap_wal.parquet.reader import demand_readable  # late, it loads pyarrow

                demand_readable(context, scan.path, scan.directory)


def _examined(scan: FileScan, state: ClusterState, node: str) -> bool:
    """Whether the recovery of `node` reads this file."""
    if scan.kind != SEGMENT or scan.node != node or state.nodes[node].manifest.clean:
        return False
    return scan.number >= scan.checkpoint.segment


def _fit_all(log: ClusterLog, manifest: ClusterManifest) -> bool:
    """Whether these keys open all files of this log. On objects, where each header costs a request,
    files that were written before the log was encrypted are not looked for."""
    ring = log.context.keys.key_ring
    key_checks.demand_same(ring, manifest.keys, log.manifests.folder)
    has_all = manifest.keys.keys() <= ring.keys.keys()
    return has_all and (ring.allows_plain or not log.store.capabilities.durable_append)
