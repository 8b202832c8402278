"""How much of a log is not covered by snapshots yet."""

from __future__ import annotations

from dataclasses import dataclass

from imap_wal.format import START
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import NodeState
from imap_wal.write.node_log import NodeLog


@dataclass(frozen=True, slots=True)
class LogSizes:
    """Sizes in bytes. `uncovered`: of the entries that no snapshot covers (archives, sealed
    segments with entries, and the segment that this process writes). `grown`: the same, but each
    segment counts as at least some bytes, because an open has to find and open each of them.
    `snapshots`: of all snapshots. The segments that others write do not count: they cannot be
    removed yet, and their sizes include space that is only reserved."""

    uncovered: int
    grown: int
    snapshots: int

    @property
    def all(self) -> int:
        return self.uncovered + self.snapshots


def sizes(logs: ClusterLog, own: NodeLog, segment_bytes_min: int) -> LogSizes:
    """`segment_bytes_min`: see `LogSizes.grown`. Raises StorageError, `LogError`."""
    state = logs.state()
    archives, segments = 0, [own.unsealed_bytes]
    for node in state.nodes.values():
        covered, complete = state.covered(node.name), state.complete(node.name)
        archives += sum(
            archive.bytes
            for archive in node.manifest.archives
            if archive.last > covered.get(archive.map, START)
        )
        writing = own.unsealed if node.name == own.identity.node else _newest(node)
        for segment in node.segments:
            if segment.number < writing:
                if segment.name == complete[:2]:
                    segments.append(max(segment.bytes - complete.frame, 0))
                elif segment.name > complete[:2]:
                    segments.append(segment.bytes)
    return LogSizes(
        archives + sum(segments),
        archives + sum(max(size, segment_bytes_min) for size in segments if size),
        sum(snapshot.bytes for snapshot in state.manifest.snapshots.values()),
    )


def _newest(node: NodeState) -> int:
    """The number of the segment that a node may be writing. That of a closed log is sealed."""
    return 2**62 if node.manifest.clean or not node.segments else node.segments[-1].number
