"""The newest change of every key, in bounded memory.

    add ─▶ one dict a map and node: key → newest row        the fast path: a lookup and a tuple compare
             │ more than `memory_bytes`
             ▼
           shared strings, exact count ─▶ still too much ─▶ SQLite in a scratch file, one row a map, key and node

The node stays apart until a key is read, so that two nodes that claim the same (incarnation, partition version) are seen as the conflict they are,
whichever was merged first, and so that merging a node never looks at another one. See docs/decisions/0006-newest-index.md.
"""

from __future__ import annotations

import sqlite3
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgpack

from imap_wal.entry import Row
from imap_wal.errors import OrderConflict

_Table = dict[bytes, Row]
_Found = tuple[Row, str]
"""The newest row of a key, and the node that wrote it."""

ROW_BYTES = 700
"""What a row fresh from msgpack takes besides key and value: tuples, integers, three strings of its own, its place in the dict."""
SHARED_ROW_BYTES = 500
"""The same, once equal strings are one."""
_KEYS_A_QUERY = 500
_ORDER = struct.Struct(">QQQQ")  # big-endian: SQLite compares the bytes as we compare the tuples


class KeyConflict(OrderConflict):
    """An `OrderConflict` that says of which key."""

    def __init__(self, name: str, key: bytes, text: str) -> None:
        super().__init__(text)
        self.map, self.key = name, key


class Newest:
    """Of several nodes' rows of the same keys, the newest. Two nodes with the same (incarnation, partition version) are a conflict when nothing is newer."""

    __slots__ = ("_conflicts", "_found")

    def __init__(self) -> None:
        self._found: dict[bytes, _Found] = {}
        self._conflicts: dict[bytes, tuple[_Found, _Found]] = {}

    def offer(self, key: bytes, row: Row, node: str) -> None:
        known = self._found.get(key)
        if known is None:
            self._found[key] = (row, node)
            return
        other, other_node = known
        order, other_order = row[9], other[9]
        if node != other_node and order[:2] == other_order[:2]:
            self._conflicts[key] = (known, (row, node))
        elif self._conflicts and order[:2] > other_order[:2]:
            self._conflicts.pop(key, None)
        if other_order < order:
            self._found[key] = (row, node)

    @property
    def count(self) -> int:
        """How many keys were offered."""
        return len(self._found)

    def settle(self) -> dict[bytes, _Found]:
        """Row and node of each key, in the order the keys were first offered. `OrderConflict`."""
        for key, ((row, node), (other, other_node)) in self._conflicts.items():
            incarnation, partition_version = row[9][:2]
            raise KeyConflict(
                row[0],
                key,
                f"map {row[0]!r}, key {key!r}: nodes {node!r} and {other_node!r} both hold a change of incarnation {incarnation}, "
                f"partition version {partition_version} (orders {row[9]} and {other[9]})",
            )
        return self._found


class NewestIndex:
    """Not thread-safe. `memory_bytes` bounds what it holds in memory; beyond that it uses a file in `scratch` (default: the system's temporary
    folder) that has no name, so that nothing is left behind even after a kill."""

    def __init__(self, memory_bytes: int, scratch: Path | None = None, *, spill: bool = True) -> None:
        self._memory_bytes, self._scratch, self._spill = memory_bytes, scratch, spill
        self.full = False
        """Without `spill`: it is time to take `every` row out and `clear`."""
        self._tables: dict[str, dict[str, _Table]] = {}
        self._grown = 0
        self._room = memory_bytes
        self._database: sqlite3.Connection | None = None
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def add(self, node: str, rows: Sequence[Row], payload_bytes: int | None = None) -> None:
        """Merge rows of one node's log, in any order. `payload_bytes`: size of the rows when the caller knows it."""
        name: str | None = None
        table: _Table = {}
        get = table.get
        new = 0
        for row in rows:
            if row[0] != name:
                new += len(table)
                name = row[0]
                table = self._tables.setdefault(name, {}).setdefault(node, {})
                new -= len(table)
                get = table.get
            key = row[1]
            known = get(key)
            if known is None or known[9] < row[9]:
                table[key] = row
        if payload_bytes is None:
            payload_bytes = sum(len(row[1]) + len(row[3] or b"") for row in rows)
        new += len(table)
        self._grown += payload_bytes + ROW_BYTES * new  # an upper bound: what replaced rows took is not given back
        if self._grown > self._room:
            self._tighten()

    def maps(self) -> list[str]:
        """Names of all maps that have a row, tombstones too."""
        found = {name for name, nodes in self._tables.items() if any(nodes.values())}
        if self._database is not None:
            found.update(self._names[number] for (number,) in self._database.execute("SELECT DISTINCT map FROM rows"))
        return sorted(found)

    def get(self, name: str, keys: Sequence[bytes]) -> list[Row | None]:
        """The newest row of each key, tombstones too; None where there is none. `OrderConflict`."""
        return [found[0] if found else None for found in self._lookup(name, keys)]

    def batches(self, name: str, rows_max: int = 10_000) -> Iterator[list[Row]]:
        """All newest rows of a map, tombstones too. Rows that are added meanwhile may show or not. `OrderConflict`."""
        for rows, _ in self.batches_with_nodes(name, rows_max):
            yield rows

    def batches_with_nodes(self, name: str, rows_max: int = 10_000, *, ordered: bool = False) -> Iterator[tuple[list[Row], list[str]]]:
        """`batches`, and of each row the node that wrote it; `ordered` by key."""
        pages = self._pages(name, rows_max, ordered) if self._database is None else self._stored_pages(name, rows_max)
        for found in pages:
            if found:
                yield [row for row, _ in found], [node for _, node in found]

    def every(self, name: str, rows_max: int = 10_000) -> Iterator[tuple[list[Row], list[str]]]:
        """The newest row of every key and node, for a merge elsewhere; no conflict is seen here."""
        if self._database is not None:
            self._flush()
            stored = self._database.execute("SELECT node, row FROM rows WHERE map = ?", (self._id(name),))
            while page := stored.fetchmany(rows_max):
                yield [msgpack.unpackb(packed, use_list=False) for _, packed in page], [self._names[number] for number, _ in page]
        for node, table in self._tables.get(name, {}).items():
            rows = iter(table.values())
            while batch := list(islice(rows, rows_max)):
                yield batch, [node] * len(batch)

    def count(self, name: str) -> int:
        """How many keys of a map have a row, tombstones too."""
        if self._database is None:
            nodes = list(self._tables.get(name, {}).values())
            return len(nodes[0]) if len(nodes) == 1 else len(_union(nodes))
        self._flush()
        return int(self._database.execute("SELECT count(DISTINCT key) FROM rows WHERE map = ?", (self._id(name),)).fetchone()[0])

    def counts(self) -> dict[str, int]:
        return {name: self.count(name) for name in self.maps()}

    def remove(self, name: str) -> None:
        """Forget a map."""
        self._tables.pop(name, None)
        if self._database is not None:
            self._database.execute("DELETE FROM rows WHERE map = ?", (self._id(name),))

    def clear(self) -> None:
        """Forget what is in memory."""
        self._tables.clear()
        self._grown, self._room, self.full = 0, self._memory_bytes, False

    def close(self) -> None:
        """Let go of memory and of the scratch file. Safe to call twice."""
        self._tables.clear()
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def overflowed(self) -> bool:
        """Whether memory did not suffice."""
        return self._database is not None

    # ---- inside ----

    def _pages(self, name: str, count: int, ordered: bool) -> Iterator[list[_Found]]:
        nodes = list(self._tables.get(name, {}).values())
        keys: Sequence[bytes] = list(nodes[0] if len(nodes) == 1 else _union(nodes))
        if ordered:
            keys = sorted(keys)
        for start in range(0, len(keys), count):
            yield [item for item in self._lookup(name, keys[start : start + count]) if item]

    def _stored_pages(self, name: str, count: int) -> Iterator[list[_Found]]:
        last, above = b"", ">="
        query = "SELECT key, node, row FROM rows WHERE map = ? AND key {} ? ORDER BY key, node LIMIT ?"
        while self._database is not None:
            self._flush()
            # by key, not by cursor: rows may be added between two batches
            page = self._database.execute(query.format(above), (self._id(name), last, count)).fetchall()
            if not page:
                return
            if len(page) == count:  # more nodes of the last key may follow
                last = page.pop()[0]
                while page and page[-1][0] == last:
                    page.pop()
                key = (self._id(name), last)
                page += self._database.execute("SELECT key, node, row FROM rows WHERE map = ? AND key = ?", key)
            last, above = page[-1][0], ">"
            newest = Newest()
            for key, number, packed in page:
                newest.offer(key, msgpack.unpackb(packed, use_list=False), self._names[number])
            yield list(newest.settle().values())

    def _lookup(self, name: str, keys: Sequence[bytes]) -> list[_Found | None]:
        """Row and node of each key."""
        nodes = self._tables.get(name, {})
        if self._database is None and len(nodes) == 1:
            ((node, table),) = nodes.items()
            return [(row, node) if row is not None else None for row in map(table.get, keys)]
        newest = Newest()
        for node, table in nodes.items():
            for key in keys:
                row = table.get(key)
                if row is not None:
                    newest.offer(key, row, node)
        if self._database is not None:
            for start in range(0, len(keys), _KEYS_A_QUERY):
                part = keys[start : start + _KEYS_A_QUERY]
                query = f"SELECT key, node, row FROM rows WHERE map = ? AND key IN ({','.join('?' * len(part))})"  # noqa: S608  # only question marks
                for key, number, packed in self._database.execute(query, (self._id(name), *part)):
                    newest.offer(key, msgpack.unpackb(packed, use_list=False), self._names[number])
        found = newest.settle()
        return [found.get(key) for key in keys]

    def _tighten(self) -> None:
        """Count exactly. When little room is left, make equal strings one; when that is not enough, give all to the scratch file."""
        tables = [table for nodes in self._tables.values() for table in nodes.values()]
        payload = sum(len(row[1]) + len(row[3] or b"") for table in tables for row in table.values())
        count = sum(map(len, tables))
        used = payload + ROW_BYTES * count
        if used > self._memory_bytes // 2:
            for table in tables:
                self._share_strings(table)
            used = payload + SHARED_ROW_BYTES * count
        if used > self._memory_bytes * 3 // 4:
            if self._spill:
                self._flush()
                used = 0
            else:
                self.full = True
        self._grown, self._room = 0, self._memory_bytes - used

    @staticmethod
    def _share_strings(table: _Table) -> None:
        intern = sys.intern
        for key, row in table.items():
            name, own, key_class, value, value_class, deleted, timestamp, expires, partition, order = row
            table[key] = (intern(name), own, intern(key_class), value, intern(value_class), deleted, timestamp, expires, partition, order)

    def _flush(self) -> None:
        database = self._database or self._open_database()
        pack = msgpack.Packer(use_bin_type=True).pack
        order = _ORDER.pack
        database.execute("BEGIN")
        for name, nodes in self._tables.items():
            number = self._id(name)
            for node, table in nodes.items():
                node_number = self._id(node)
                database.executemany(
                    "INSERT INTO rows VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET ord = excluded.ord, row = excluded.row "
                    "WHERE excluded.ord > rows.ord",
                    ((number, key, node_number, order(*table[key][9]), pack(table[key])) for key in sorted(table)),
                )
        database.execute("COMMIT")
        self._tables.clear()
        self._grown, self._room = 0, self._memory_bytes

    def _open_database(self) -> sqlite3.Connection:
        with tempfile.NamedTemporaryFile(prefix="imap-wal-index-", dir=self._scratch) as file:
            database = sqlite3.connect(file.name, isolation_level=None, check_same_thread=False)
            # Nobody reads this file after us: no journal, no sync. And none of it is needed by name again.
            for pragma in (
                "journal_mode = OFF",
                "synchronous = OFF",
                "locking_mode = EXCLUSIVE",
                f"cache_size = -{max(2048, self._memory_bytes // 8192)}",
            ):
                database.execute(f"PRAGMA {pragma}")
            database.execute(
                "CREATE TABLE rows (map INTEGER, key BLOB, node INTEGER, ord BLOB, row BLOB, PRIMARY KEY (map, key, node)) WITHOUT ROWID"
            )
        self._database = database
        return database

    def _id(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self._names)
            self._names.append(name)
        return number


def _union(tables: list[_Table]) -> set[bytes]:
    keys: set[bytes] = set()
    return keys.union(*tables)
