"""The part of an index in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

from imap_wal.entry import KEY, ORDER
from imap_wal.read.newest.table import Owned, Table, sizes_of
from imap_wal.rules.cleared import Cleared

ROW_BYTES = 700
"""Memory of a row from msgpack besides key and value: tuples, integers, its own three strings, its
slot in the dict."""
PART_ROWS = 1024
"""After this many rows, another thread may run."""


class MemoryRows:
    """Not thread-safe. `cleared`: entries that are left out."""

    def __init__(self, cleared: Cleared) -> None:
        self._cleared = cleared
        self.tables: dict[str, Table] = {}
        """Those of maps that have, or had, rows in memory."""

    def winners(self, name: str, table: Table, keys: Sequence[bytes]) -> list[Owned | None]:
        """The newest row of each key that was not cleared."""
        winners = list(map(table.rows.get, keys))
        if name in self._cleared:
            there = [(index, row) for index, row in enumerate(winners) if row is not None]
            for place in self._cleared.hidden(
                name, [row[KEY] for _, row in there], [row[ORDER] for _, row in there]
            ):
                index, row = there[place]
                winners[index] = next(iter(self.contenders(name, table, row[KEY])), None)
        return winners

    def contenders(self, name: str, table: Table, key: bytes) -> list[Owned]:
        """The contenders that were not cleared, the winner first."""
        contenders = table.of(key)
        hidden = self._cleared.hidden(
            name, [key] * len(contenders), [row[ORDER] for row in contenders]
        )
        return [row for index, row in enumerate(contenders) if index not in hidden]

    def counted(self, pause: Callable[[], object] = bool) -> tuple[int, int]:
        """Memory of the rows: of their keys and values, and of the rest. `pause` is called between
        two parts."""
        tables = self.tables.values()
        rivals = [row for table in tables for rows in table.rivals.values() for row in rows]
        held = chain(rivals, *(table.rows.values() for table in tables))
        payload = count = 0
        while some := list(islice(held, PART_ROWS)):
            payload += sum(sizes_of(some))
            count += len(some)
            pause()
        return payload, ROW_BYTES * count

    def purge(self, pause: Callable[[], object] = bool) -> None:
        """Drop the cleared keys. A listing would not find them. `pause` is called between two
        parts."""
        for name, table in self.tables.items():
            keys = list(table.rows) if name in self._cleared else []
            for start in range(0, len(keys), PART_ROWS):
                some = keys[start : start + PART_ROWS]
                hidden = self._cleared.hidden(name, some, [table.rows[key][ORDER] for key in some])
                gone = [some[at] for at in hidden if not self.contenders(name, table, some[at])]
                if gone:
                    table.remove(gone)
                pause()
