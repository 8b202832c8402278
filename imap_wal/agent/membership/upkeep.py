"""When the log of all agents was last compacted and backed up, by whichever process."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.backup.age import ended_ms
from imap_wal.read.cluster import ClusterLog


@dataclass(frozen=True, slots=True)
class Upkeep:
    """In Unix time; 0: never, or not known. `manifest`: number of the cluster's manifest that
    `compacted_ms` is from."""

    compacted_ms: int = 0
    backed_up_ms: int = 0
    manifest: int = 0

    def newer(self, log: ClusterLog) -> Upkeep:
        """As it is now. Raises StorageError and LogError."""
        number, manifest = log.manifests.read()
        compacted_ms = self.compacted_ms
        if number != self.manifest:
            snapshots = manifest.snapshots.values()
            compacted_ms = max((snapshot.created_ms for snapshot in snapshots), default=0)
        return Upkeep(compacted_ms, ended_ms(log), number)
