"""How much of a log is not covered by snapshots yet."""

from __future__ import annotations

from imap_wal.format import START
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import NodeState
from imap_wal.write.node_log import NodeLog


def sizes(logs: ClusterLog, own: NodeLog) -> tuple[int, int]:
    """Two sizes in bytes: of the entries that no snapshot covers (archives, sealed segments with
    entries, and the segment that `own` writes), and of all snapshots. The segments that others
    write do not count: they cannot be removed yet, and their sizes include space that is only
    reserved. Raises StorageError, `LogError`."""
    state = logs.state()
    uncovered = own.unsealed_bytes
    for node in state.nodes.values():
        covered, complete = state.covered(node.name), state.complete(node.name)
        uncovered += sum(
            archive.bytes
            for archive in node.manifest.archives
            if archive.last > covered.get(archive.map, START)
        )
        writing = own.unsealed if node.name == own.identity.node else _newest(node)
        for segment in node.segments:
            if segment.number < writing:
                if segment.name == complete[:2]:
                    uncovered += max(segment.bytes - complete.frame, 0)
                elif segment.name > complete[:2]:
                    uncovered += segment.bytes
    return uncovered, sum(snapshot.bytes for snapshot in state.manifest.snapshots.values())


def _newest(node: NodeState) -> int:
    """The number of the segment that a node may be writing. That of a closed log is sealed."""
    return 2**62 if node.manifest.clean or not node.segments else node.segments[-1].number
