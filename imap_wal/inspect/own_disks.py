"""The ends of logs that are only on the own disks of nodes, as the root and the agents report
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imap_wal import format, layout
from imap_wal.errors import LogError
from imap_wal.placement.router import Tails
from imap_wal.read.state import ClusterState, NodeState
from storage_backends import StorageError

HEADER_BYTES_MAX = 65536


@dataclass(frozen=True, slots=True)
class OwnDisk:
    """What is only on a node's own disk: its segments `first` to `last`. `seconds`: since the last
    upload; None: there was none, or the storage does not say when it was."""

    node: str
    first: int
    last: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class DiskTail:
    """The same, from the node's agent. `bytes`: of these segments, with the space that the newest
    one reserves. `seconds`: since the first of them was begun."""

    bytes: int
    seconds: float


def own_disks(view: ClusterState, now_ms: int) -> tuple[OwnDisk, ...]:
    """The nodes with segments that are not in the root."""
    return tuple(own_disk(node, now_ms) for node in nodes_with_tails(view))


def nodes_with_tails(view: ClusterState) -> Iterator[NodeState]:
    """The nodes with segments that are not in the root."""
    missing = set(view.missing_nodes)
    for node in view.all_nodes:
        if node.is_on_own_disk and node.name not in missing:
            yield node


def own_disk(node: NodeState, now_ms: int) -> OwnDisk:
    """The segments that are not in the root, of one of `nodes_with_tails`."""
    unseen = node.manifest.unseen(node.wal)
    times = (file.modified_ms for file in node.files if layout.parse_wal_path(file.path))
    uploaded = max(times, default=0)
    seconds = (now_ms - uploaded) / 1000 if uploaded else None
    return OwnDisk(node.name, unseen[0], unseen[-1], seconds)


def asked(node: NodeState, tails: Tails, now_ms: int) -> DiskTail | None:
    """The tail of a node (one of `nodes_with_tails`), from its agent; None: the agent does not
    answer, or the answer cannot be read."""
    first = node.manifest.unseen(node.wal)[0]
    try:
        files = {layout.parse_wal_path(file.path): file for file in tails.files(node.folder)}
        those = sorted(
            (name[1], file) for name, file in files.items() if name is not None and name[1] >= first
        )
        if not those:
            return DiskTail(0, 0.0)  # uploaded meanwhile
        oldest = those[0][1].path
        header = format.decode_header(tails.read(oldest, 0, HEADER_BYTES_MAX), oldest)[0]
    except (StorageError, LogError):
        return None
    size = sum(file.size for _, file in those)
    return DiskTail(size, max(0.0, (now_ms - header.created_ms) / 1000))
