"""Clears: which entries they delete, and which clears a snapshot must keep.

A clear is an entry without a key. It names a map, a partition, and the number of partitions, and
deletes all entries of that partition that have a lower order. So `IMap.clear` is one entry for each
partition, whatever the number of keys. An embedded map has one partition.

    floor    the newest clear of a partition
    hidden   a change of a key below the floor of the key's partition; it does not count

Only order decides, so the result does not depend on the sequence of reading. The partition of a key
is computed from its bytes with the clear's own number of partitions: the writer of an older entry
may have had another number. A clear may be dropped when a tombstone in its place may be
(decision 17). See decision 26 in docs/decisions/order.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from imap_wal.entry import (
    MAP,
    ORDER,
    ORDER_FIELDS,
    PARTITION,
    PARTITION_COUNT,
    Order,
    Row,
    is_clear,
)
from imap_wal.errors import ImapWalError
from imap_wal.partitions import partition_number
from imap_wal.rules.arrow import pa
from imap_wal.rules.newer import Claim, rank

NONE: frozenset[int] = frozenset()
COUNTS_MAX = 64
"""How many different numbers of partitions the clears of a map may have. A cluster has one, and
each of them makes a lookup slower."""
NO_FLOOR: Order = (-1, -1, -1, -1)
ROWS_AT_ONCE = 65_536


def is_hidden(row: Row, floor: Order) -> bool:
    return row[ORDER] < floor


class Floors:
    """The newest clears of one map. `add` raises `ImapWalError` for a clear of a partition that
    cannot exist, or if the clears have more than `COUNTS_MAX` numbers of partitions."""

    __slots__ = ("_newest", "_top")

    def __init__(self) -> None:
        self._newest: dict[int, dict[int, Claim]] = {}
        """Number of partitions → partition → newest clear."""
        self._top = NO_FLOOR

    def add(self, row: Row, node: str) -> None:
        if not 0 <= row[PARTITION] < row[PARTITION_COUNT]:  # no version of this program wrote this
            raise ImapWalError(
                f"map {row[MAP]!r}: a clear of node {node!r}, order {row[ORDER]}, is for "
                f"partition {row[PARTITION]} of {row[PARTITION_COUNT]}; there is no "
                "such partition, so it is unknown what it deletes. `imap-wal verify` names "
                "its file; replace that file by a copy"
            )
        newest = self._newest.get(row[PARTITION_COUNT])
        if newest is None:
            if len(self._newest) == COUNTS_MAX:
                raise ImapWalError(
                    f"map {row[MAP]!r}: a clear of node {node!r}, order {row[ORDER]}, is for "
                    f"one of {row[PARTITION_COUNT]} partitions, and the clears of this map "
                    f"have {COUNTS_MAX} other numbers of partitions already; no cluster "
                    "writes that. Look at them with `imap-wal dump`, and restore the log "
                    "from a "
                    "copy that was made before them"
                )
            newest = self._newest[row[PARTITION_COUNT]] = {}
        former = newest.get(row[PARTITION])
        if former is None or rank(*former) < rank(row, node):
            newest[row[PARTITION]] = row, node
        self._top = max(self._top, row[ORDER])

    def counts(self) -> Iterable[int]:
        """The different numbers of partitions."""
        return self._newest.keys()

    def claims(self) -> list[Claim]:
        """The newest clears, and the nodes that wrote them."""
        return [
            newest[partition]
            for _, newest in sorted(self._newest.items())
            for partition in sorted(newest)
        ]

    def hidden(self, keys: Sequence[bytes], orders: Sequence[Order]) -> set[int]:
        """The indexes of the hidden ones among these changes."""
        top = self._top
        below = [index for index, order in enumerate(orders) if order < top]
        hidden: set[int] = set()
        if below:
            embedded = self._newest.keys() == {1}  # one partition: no need to hash the keys
            hashed = [0 if embedded else partition_number(keys[index]) for index in below]
            for count, newest in self._newest.items():
                for index, number in zip(below, hashed, strict=True):
                    floor = newest.get(number % count)
                    if floor is not None and orders[index] < floor[0][ORDER]:
                        hidden.add(index)
        return hidden


class Cleared:
    """The floors of all maps. A map without clears costs one lookup in a dict."""

    def __init__(self) -> None:
        self._maps: dict[str, Floors] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._maps

    def take(self, node: str, rows: Sequence[Row]) -> list[Row]:
        """Record the clears among the rows of one node; returns the other rows."""
        for row in rows:
            if is_clear(row):
                self._maps.setdefault(row[MAP], Floors()).add(row, node)
        return [row for row in rows if not is_clear(row)]

    def maps(self) -> list[str]:
        return list(self._maps)

    def counts(self) -> set[int]:
        """The different numbers of partitions of all clears."""
        return {count for floors in self._maps.values() for count in floors.counts()}

    def claims(self, name: str) -> list[Claim]:
        """The newest clear of each partition of a map, and the node that wrote it."""
        floors = self._maps.get(name)
        return [] if floors is None else floors.claims()

    def hidden(
        self, name: str, keys: Sequence[bytes], orders: Sequence[Order]
    ) -> set[int] | frozenset[int]:
        """The indexes of the hidden ones among these changes of a map."""
        floors = self._maps.get(name)
        return NONE if floors is None else floors.hidden(keys, orders)

    def without(self, table: Any, name: str) -> Any:
        """The rows of a table of a map that are not hidden."""
        if name not in self:
            return table
        batches = []
        for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
            orders = zip(*(batch.column(field).to_pylist() for field in ORDER_FIELDS), strict=True)
            hidden = self.hidden(name, batch.column("key").to_pylist(), list(orders))
            mask = [index not in hidden for index in range(len(batch))]
            batches.append(batch.filter(pa.array(mask, pa.bool_())))
        return pa.Table.from_batches(batches, table.schema)

    def remove(self, name: str) -> None:
        self._maps.pop(name, None)

    def forget(self) -> None:
        self._maps.clear()
