"""Plain values for reading, which can be sent to another process: a `FileScan` is one segment,
archive or snapshot part and which of its entries count; an `EntryBatch` has entries that were
read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from imap_wal.entry import KEY, Row, Upserts
from imap_wal.format import END, START, Position
from imap_wal.manifest.epochs import Epoch
from imap_wal.rules.counts import Cuts, Overtaken

SEGMENT, ARCHIVE, SNAPSHOT = "segment", "archive", "snapshot"
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""A batch has about this many bytes (or one frame or row group, if that is larger)."""

Metadata: TypeAlias = tuple[Any, ...]
MEMBERS_MAX = 1000
"""Metadata records that a manifest or a view keeps, besides schemas; the oldest are dropped
first."""
KeySet: TypeAlias = frozenset[bytes]
KeySpan: TypeAlias = tuple[bytes, bytes | None]
"""The keys from the first on and below the second; None: there is no end."""


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """A batch of entries of one node, from position `first` to `last` (including entries that do
    not count; START in a snapshot). `bytes` is their unpacked size in storage. `positions` are
    those of `rows`, with the ids of their epochs, on request; then an archive is read in log order
    too, and otherwise only each of its keys. `next_offset` is where reading a segment continues.
    `frames`: the offset and the number of rows of each frame of a segment; only if all of its
    entries count. `clears`: some of the rows may be clears, which have no key
    (`imap_wal.rules.cleared`)."""

    node: str
    rows: list[Row]
    first: Position
    last: Position
    bytes: int = 0
    positions: list[Position] | None = None
    metadata: tuple[Metadata, ...] = ()
    next_offset: int = 0
    clears: bool = False
    frames: tuple[tuple[int, int], ...] = ()


def by_node(rows: list[Row], nodes: list[str], size: int) -> Iterator[EntryBatch]:
    """Rows of a snapshot, in a batch for each node that wrote some. `size`: in bytes."""
    clears = not isinstance(rows, Upserts) and None in map(itemgetter(KEY), rows)
    rows_by_node: dict[str, list[Row]] = {}
    if len(set(nodes)) == 1:
        rows_by_node[nodes[0]] = rows
    else:
        for row, node in zip(rows, nodes, strict=True):
            rows_by_node.setdefault(node, []).append(row)
    for node, own in rows_by_node.items():
        yield EntryBatch(node, own, START, START, size * len(own) // len(rows), clears=clears)


@dataclass(frozen=True, slots=True)
class FileScan:
    """One file, and which of its entries count. `map` is "" for a segment, `node` is "" for a
    snapshot. `directory`: UUID of the node's log; "": unknown, or a snapshot. `next_path` is the
    segment after a sealed one; "" for the newest. `start` is the byte offset to begin at (0: at the
    start, or after `since`). `records` and `checksum` (CRC-32C of the whole file) are those in the
    manifest for a Parquet file; 0: unknown."""

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
    cuts: Cuts = ()
    bytes: int = 0
    records: int = 0
    checkpoint: Position = START
    newest: int = 0
    """`checkpoint` and `newest` are from the node's manifest, if known: a segment that ends before
    them is damaged."""
    checksum: int = 0
    unpacked: int = 0
    """As in `imap_wal.manifest.node.Archive`."""
    keys: KeySet | None = None
    """Only entries of these keys, and clears, are needed: a Parquet file is read only where it may
    have some. Others may be returned too. None: all keys."""
    overtaken: Overtaken = field(default_factory=dict)
    span: KeySpan | None = None
    """As `keys`: only entries with keys of this range, and clears, are needed. None: all keys."""
    complete: Position = START
    """Snapshots cover all entries up to it, of any map: they are not decoded."""
    epochs: tuple[Epoch, ...] = ()
    """Of the node's log, those that the file has entries of."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which entries of a cluster's logs are read: those of `nodes` (None: all) above `since` and up
    to `until`, which have a position for each node. A node that is not in `since` is read from the
    start; one that is not in `until` is not read, unless `until` is None: then all are read to the
    end. `snapshots`: the entries of snapshots too. `covered`: the entries that a snapshot covers
    too, as far as they are still in the logs. `span`: of snapshots, only keys of this range are
    needed."""

    nodes: Collection[str] | None = None
    since: Mapping[str, Position] = field(default_factory=dict)
    until: Mapping[str, Position] | None = None
    snapshots: bool = True
    covered: bool = False
    span: KeySpan | None = None


def from_manifest(item: Metadata) -> Metadata:
    """Metadata in the form of a frame: a node's manifest has a schema's bytes in hex."""
    return (
        ("schema", item[1], bytes.fromhex(item[2]))
        if item[0] == "schema" and isinstance(item[2], str)
        else tuple(item)
    )
