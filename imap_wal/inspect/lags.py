"""How far the registered readers of a log are from its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imap_wal.format import START, Position
from imap_wal.manifest.readers import HISTORY, readers_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState, NodeState

STREAM = "stream"


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """What one reader has not read of one node. `kind`: a stream, or `HISTORY`. `position`: it has
    read up to there. `end`: of the node's log. `unread_bytes`: of archives and segments; an archive
    with one unread entry counts as a whole, because positions in it are not sorted. `updated_ms`:
    when the reader reported last, Unix time."""

    reader: str
    kind: str
    node: str
    position: Position
    end: Position
    unread_bytes: int
    updated_ms: int


def lags(
    log: ClusterLog, state: ClusterState, since: Mapping[str, Position] | None = None
) -> Iterator[ReaderLag]:
    """For each reader and each node of `state` whose log is there; not for published tables. Reads
    the end of each newest segment; less of it with `since`, the ends that were found before. Raises
    `NotFound` if the log changes too fast."""
    readers = {
        name: reader
        for name, reader in sorted(readers_of(log.store, log.folder).items())
        if not reader.files_only
    }
    ends = log.ends(since, state) if readers else {}
    for name, reader in readers.items():
        for node, end in ends.items():
            position = reader.positions.get(node, START)
            yield ReaderLag(
                name,
                HISTORY if name == HISTORY else STREAM,
                node,
                position,
                end,
                _unread(state.nodes[node], position, end),
                reader.updated_ms,
            )


def _unread(node: NodeState, position: Position, end: Position) -> int:
    """About how many bytes are after `position`; an archive counts as a whole."""
    archived = sum(archive.bytes for archive in node.manifest.archives if archive.last > position)
    in_segments = 0
    for segment in node.segments:
        if segment.name < position[:2] or segment.name > end[:2]:
            continue
        # The newest segment may be preallocated beyond its last frame.
        until = min(segment.bytes, end.frame) if segment.name == end[:2] else segment.bytes
        since = position.frame if segment.name == position[:2] else 0
        in_segments += max(0, until - since)
    return archived + in_segments
