"""What is read of a log, as plain values that can be sent to another process: a `FileScan` is one
segment, archive or snapshot part and which of its entries count; `EntryBatch` are entries that were
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from imap_wal.entry import Row
from imap_wal.format import START, Position

SEGMENT, ARCHIVE, SNAPSHOT = "segment", "archive", "snapshot"
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""A batch of changes is about this much (one frame or row group, where that is more)."""

END = Position(2**62, 0, 0, 0)
"""After everything."""

Metadata: TypeAlias = tuple[Any, ...]
Overtaken: TypeAlias = Mapping[str, Mapping[int, tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """A batch of entries of one node, in log order, from position `first` to `last` (entries that
    do not count included; START of a snapshot). `bytes` is what they took on storage, unpacked.
    `positions` are those of `rows`, when asked for. `next_offset` is where reading a segment
    continues. `clears`: some of the rows may be clears, which have no key
    (`imap_wal.read.newest.clears`)."""

    node: str
    rows: list[Row]
    first: Position
    last: Position
    bytes: int = 0
    positions: list[Position] | None = None
    metadata: tuple[Metadata, ...] = ()
    next_offset: int = 0
    clears: bool = False


@dataclass(frozen=True, slots=True)
class FileScan:
    """One file and what of it counts. `map` is "" for a segment, `node` is "" for a snapshot.
    `directory`: UUID of the node's log; "": not known, or a snapshot.
    `next_path` is the segment after a sealed one; "" for the newest. `start` is the byte offset to
    begin at (0: at the front, or after `since`). `records` and `checksum` (CRC-32C of the whole
    file) are what the manifest says of a Parquet file; 0: nothing."""

    kind: str
    node: str
    path: str
    map: str = ""
    directory: str = ""
    epoch: int = 0
    number: int = 0
    first: Position = START
    last: Position = END
    next_path: str = ""
    start: int = 0
    since: Position | None = None
    until: Position | None = None
    covered: Mapping[str, Position] = field(default_factory=dict)
    cuts: tuple[tuple[int, Position], ...] = ()
    bytes: int = 0
    records: int = 0
    checkpoint: Position = START
    newest: int = 0
    """These two are the node manifest's, where it is known: a segment that has less than it names
    is damaged."""
    checksum: int = 0
    overtaken: Overtaken = field(default_factory=dict)
