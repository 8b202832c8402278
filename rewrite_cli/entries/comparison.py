"""The difference of two states of maps, in bounded memory: digests of the entries are in a SQLite
table in the scratch folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, VALUE_CLASS, Row

OLD, NEW = "old", "new"
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_QUERIES = {
    ADDED: "select m, k from new n where not exists "
    "(select 1 from old o where o.m = n.m and o.k = n.k)",
    REMOVED: "select m, k from old o where not exists "
    "(select 1 from new n where o.m = n.m and o.k = n.k)",
    CHANGED: "select o.m, o.k from old o join new n on o.m = n.m and o.k = n.k where o.d <> n.d",
}
_BATCH = 10_000


@dataclass(frozen=True)
class Difference:
    """The keys of one map that differ."""

    map: str
    counts: Mapping[str, int]
    listed: Mapping[str, list[bytes]] = field(default_factory=dict)
    """The first keys of each kind, by their bytes."""


class Comparison:
    """Two sides are filled, then compared. Entries differ if value, class of the value or expiry
    differ."""

    def __init__(self, scratch: Path) -> None:
        self._tables = sqlite3.connect(scratch / "compare.sqlite", isolation_level=None)
        self._tables.execute("pragma journal_mode = off")
        self._tables.execute("pragma synchronous = off")
        for side in (OLD, NEW):
            self._tables.execute(
                f"create table {side} (m text, k blob, d blob, primary key (m, k)) without rowid"
            )

    def close(self) -> None:
        self._tables.close()

    def fill(self, side: str, name: str, pages: Iterable[list[Row]]) -> None:
        """Add the live entries of a map to `OLD` or `NEW`."""
        for rows in pages:
            for start in range(0, len(rows), _BATCH):
                self._tables.execute("begin")
                self._tables.executemany(
                    f"insert or replace into {side} values (?, ?, ?)",  # noqa: S608
                    ((name, row[KEY], digest(row)) for row in rows[start : start + _BATCH]),
                )
                self._tables.execute("commit")

    def differences(self, limit: int) -> Iterator[Difference]:
        """The maps that differ, by name; `limit`: how many keys of each kind are listed."""
        counts: dict[str, dict[str, int]] = {}
        for kind, query in _QUERIES.items():
            for name, count in self._tables.execute(
                f"select m, count(*) from ({query}) group by m"  # noqa: S608
            ):
                counts.setdefault(name, dict.fromkeys(_QUERIES, 0))[kind] = count
        for name in sorted(counts):
            listed = {
                kind: [
                    bytes(key)
                    for _, key in self._tables.execute(
                        f"select * from ({query}) where m = ? order by 2 limit ?",  # noqa: S608
                        (name, limit),
                    )
                ]
                for kind, query in _QUERIES.items()
            }
            yield Difference(name, counts[name], listed)


def digest(row: Row) -> bytes:
    """A digest of everything that a reader of the map sees."""
    head = f"{row[EXPIRES_AT_MS]} {len(row[VALUE_CLASS])} {row[VALUE_CLASS]} ".encode()
    return blake2b(head + (row[VALUE] or b""), digest_size=16).digest()
