"""The newest change of each key of a log that is read in any order. Memory is bounded: a temporary
database of SQLite has keys, and the places of values instead of values."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from rewrite_cli.sources.seatunnel_record import StoredChange

WAITING_MAX, WAITING_BYTES = 10_000, 4 * 1024 * 1024
"""Keys that may wait in memory, and their bytes."""
CACHE_BYTES = 32 * 1024 * 1024

_TABLE = """CREATE TABLE newest (map, key, key_class, timestamp, file, position, deleted,
    value_class, at, bytes, PRIMARY KEY (map, key)) WITHOUT ROWID"""
_KEEP = """INSERT INTO newest VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (map, key) DO UPDATE SET
        timestamp = excluded.timestamp, file = excluded.file, position = excluded.position,
        deleted = excluded.deleted, value_class = excluded.value_class,
        at = excluded.at, bytes = excluded.bytes
    WHERE (excluded.timestamp, excluded.file, excluded.position) > (timestamp, file, position)"""
_LIVE = """SELECT map, key, key_class, file, value_class, at, bytes FROM newest
    WHERE NOT deleted ORDER BY map, file, at"""
_DELETED = "SELECT map, count(*) FROM newest WHERE deleted GROUP BY map"


class Live(NamedTuple):
    """A key, and where its value is: in the file of this number, `bytes` long."""

    map: str
    key: bytes
    key_class: str
    file: int
    value_class: str
    at: int
    bytes: int


class NewestChanges:
    """The change with the highest timestamp counts; of those of one millisecond, that of the file
    with the highest number, and in it the last one. Raises `sqlite3.Error` if scratch is full."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")  # a file without a name, in the temporary folder
        self._database.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(_TABLE)
        self._waiting: dict[tuple[str, bytes], tuple[Any, ...]] = {}
        self._waiting_bytes = 0

    def add(self, name: str, key: bytes, file: int, position: int, change: StoredChange) -> None:
        """Take a change of the map `name`. `key`: as in the log. Files and positions rise."""
        subject = name, key
        former = self._waiting.get(subject)
        if former is None:
            self._waiting_bytes += len(key)
        elif change.timestamp_ms < former[3]:
            return
        label, _, timestamp, deleted, value_class, at, size = change
        self._waiting[subject] = (
            *(name, key, label, timestamp, file, position, deleted, value_class, at, size),
        )
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES:
            self._store()

    def deleted(self) -> dict[str, int]:
        """Of each map, the number of keys whose newest change is a deletion."""
        self._store()
        return dict(self._database.execute(_DELETED).fetchall())

    def live(self) -> Iterator[Live]:
        """All other keys, by map, file and place."""
        self._store()
        yield from map(Live._make, self._database.execute(_LIVE))

    def close(self) -> None:
        self._database.close()

    def _store(self) -> None:
        self._database.executemany(_KEEP, self._waiting.values())
        self._waiting.clear()
        self._waiting_bytes = 0
