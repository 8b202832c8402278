"""The newest rows of one map in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, islice
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar, cast

from imap_wal.entry import DELETED, KEY, KEY_CLASS, MAP, ORDER, VALUE, VALUE_CLASS, Row
from imap_wal.partitions import PartitionedKeys, Partitions
from imap_wal.read.newest.rivals import RivalClaims, conflict
from imap_wal.rules.newer import Claim, Contest, content_of

Owned: TypeAlias = tuple[Any, ...]
"""A row of a table, with its node at the end if that is not the table's."""
OWN_FIELDS = 10
"""The length of a row without its node."""
WINDOW_ROWS = 1024
SORTED_AT_ONCE = 1 << 15

T = TypeVar("T")


class Table:
    """The newest rows of one map in memory. `node` wrote those without a node of their own;
    `alone`: no other node wrote any. `rivals`: the contenders that are not in `rows`, of keys that
    several nodes claim."""

    __slots__ = ("_partitioned", "alone", "node", "offer", "owner", "rivals", "rows")

    def __init__(self, node: str = "") -> None:
        def owner(row: Owned) -> str:  # no method, so that no table refers to itself
            return row[OWN_FIELDS] if len(row) > OWN_FIELDS else node

        self.node, self.owner, self.alone = node, owner, True
        self.rows: dict[bytes, Owned] = {}
        self.rivals: dict[bytes, list[Owned]] = {}
        self._partitioned: PartitionedKeys | None = None
        contest: Contest[Owned] = Contest(itemgetter(ORDER), owner, itemgetter(DELETED), content_of)
        self.offer = partial(contest.offer, self.rows, self.rivals)
        """Adds a row of a key, in a map that several nodes write."""

    def keys_in(self, partitions: Partitions) -> list[bytes]:
        """The keys of some partitions. Only new keys are hashed."""
        partitioned = self._partitioned
        if partitioned is None or partitioned.count != partitions.count:
            if not partitions.is_remembered:
                keys = list(self.rows)
                return list(compress(keys, partitions.have(keys)))
            partitioned = self._partitioned = PartitionedKeys(partitions.count)
        return partitioned.within(partitions, self.rows)

    def remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            del self.rows[key]
            self.rivals.pop(key, None)
        self._partitioned = None

    def claim(self, row: Owned) -> Claim:
        """A row as it was written, and its node."""
        return cast(Row, row[:OWN_FIELDS]), self.owner(row)

    def of(self, key: bytes) -> list[Owned]:
        """The contenders of a key, the winner first."""
        row = self.rows.get(key)
        return [] if row is None else [row, *self.rivals.get(key, ())]

    def conflict(self, name: str, key: bytes) -> RivalClaims | None:
        """The conflict of a key, if there is one."""
        return (
            conflict(name, key, list(map(self.claim, self.of(key)))) if key in self.rivals else None
        )

    def split(self, page: list[Owned]) -> tuple[list[Row], list[str]]:
        """The rows, and the node of each."""
        own, node = OWN_FIELDS, self.node
        return [cast(Row, row[:own]) for row in page], [
            row[own] if len(row) > own else node for row in page
        ]

    def pages(self, rows: list[Owned], bytes_max: int) -> Iterator[tuple[list[Row], list[str]]]:
        """The rows and their nodes, in pages of about `bytes_max`."""
        for page in in_pages(rows, sizes_of(rows), bytes_max):
            yield self.split(page)

    def windows(
        self,
        after: bytes | None,
        partitions: Partitions | None = None,
        pause: Callable[[], object] = bool,
    ) -> Iterator[list[Owned]]:
        """All contenders of the keys above `after`, in key order, in lists. `partitions`: only of
        keys in these. `pause` is called while they are sorted."""
        keys: Collection[bytes] = self.rows if partitions is None else self.keys_in(partitions)
        keys = in_order(keys if after is None else [key for key in keys if key > after], pause)
        for start in range(0, len(keys), WINDOW_ROWS):
            some = keys[start : start + WINDOW_ROWS]
            yield (
                [row for key in some for row in self.of(key)]
                if self.rivals
                else [self.rows[key] for key in some]
            )

    def share_strings(self) -> None:
        """Share equal strings."""
        intern, rows = sys.intern, self.rows
        for key, row in rows.items():
            rows[key] = (
                intern(row[MAP]),
                row[KEY],
                intern(row[KEY_CLASS]),
                row[VALUE],
                intern(row[VALUE_CLASS]),
                *row[DELETED:],
            )
        for rivals in self.rivals.values():
            rivals[:] = [
                (
                    intern(row[MAP]),
                    row[KEY],
                    intern(row[KEY_CLASS]),
                    row[VALUE],
                    intern(row[VALUE_CLASS]),
                    *row[DELETED:],
                )
                for row in rivals
            ]


def sizes_of(rows: Iterable[Owned]) -> list[int]:
    """The bytes of key and value of each."""
    return [len(row[KEY]) + len(row[VALUE] or b"") for row in rows]


def in_order(keys: Collection[bytes], pause: Callable[[], object] = bool) -> list[bytes]:
    """Sorted in parts, because no other thread runs while one list is sorted. `pause` is called
    between two of them."""
    left = iter(keys)
    parts = []
    while part := sorted(islice(left, SORTED_AT_ONCE)):
        parts.append(part)
        pause()
    while len(parts) > 1:  # Timsort only merges two sorted parts
        former, parts = parts, parts[len(parts) // 2 * 2 :]
        for first, second in zip(former[::2], former[1::2], strict=False):
            parts.append(sorted(first + second))
            pause()
    return parts[0] if parts else []


def in_pages(items: list[T], sizes: Sequence[int], bytes_max: int) -> Iterator[list[T]]:
    """Cuts a list where `sizes` add up to more than `bytes_max`; no page is empty."""
    if sum(sizes) <= bytes_max:
        if items:
            yield items
        return
    start = size = 0
    for index, item_size in enumerate(sizes):
        if size + item_size > bytes_max and index > start:
            yield items[start:index]
            start, size = index, 0
        size += item_size
    yield items[start:]
