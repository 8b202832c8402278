"""Which maps a log has, without reading more of it than needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from imap_wal.entry import MAP
from imap_wal.errors import LogError
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from storage_backends import NotFound


class MapNames:
    """The maps of a log of which any entry is left, or a snapshot."""

    def __init__(self, log: ClusterLog) -> None:
        self._log = log
        self.known: set[str] = set()
        self.complete = True
        """Whether all files that were examined could be read."""

    def has(self, wanted: Collection[str]) -> bool:
        """Whether the log has all these maps. If it has, only manifests and perhaps some segments
        are read; otherwise all segments are, and `known` has every map that can be read.

        Raises:
            StorageError: The storage failed.
            EncryptionError: The keys do not fit a file.
        """
        left = set(wanted)
        for names in self._steps():
            self.known |= names
            left -= names
            if not left:
                return True
        return False

    def _steps(self) -> Iterator[set[str]]:
        try:
            state = self._log.state()
        except LogError:
            self.complete = False
            return
        self.complete = not state.missing
        yield set(state.manifest.snapshots)
        yield {archive.map for node in state.nodes.values() for archive in node.manifest.archives}
        yield from self._in_segments(state)

    def _in_segments(self, state: ClusterState) -> Iterator[set[str]]:
        for scan in cluster_scans(state, snapshots=False, covered=True):
            if scan.kind != SEGMENT:
                continue
            try:
                for batch in read_scan(self._log.store, scan):
                    yield {row[MAP] for row in batch.rows}
            # The command reports damage itself. Maps of an archived or removed file may be missing.
            except (LogError, NotFound):
                self.complete = False
