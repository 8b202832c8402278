"""Reads SQLite files of other libraries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewrite_cli.sources.source import damaged

HEADER = b"SQLite format 3\0"
_WAL_MODE = 2


def is_database(path: Path) -> bool:
    return path.is_file() and _start(path).startswith(HEADER)


def open_database(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Raises `Failed` if this is not an SQLite file."""
    with reading(path):
        start = _start(path)
        if not start.startswith(HEADER):
            raise sqlite3.DatabaseError("it is not an SQLite file")
        # In this mode SQLite would create files beside it. Without a log, no program writes to it.
        log = path.with_name(f"{path.name}-wal")
        alone = start[18] == _WAL_MODE and not (log.exists() and log.stat().st_size)
        options = "mode=ro&immutable=1" if alone else "mode=ro"
        database = sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("BEGIN")  # all reads show one moment
        # So only the key that is not UTF-8 is refused.
        database.text_factory = lambda data: data.decode(errors="surrogateescape")
        return database


def columns_of(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The tables and their columns. Views are left out: they run what the file says."""
    names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    return {name: _columns(database, name) for (name,) in names.fetchall()}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    rows: list[Any] = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    return [row[1] for row in rows]


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100).ljust(100, b"\0")


def size_of(path: Path) -> int:
    return sum(
        file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises `Failed` for errors of SQLite and of the file system."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise damaged(path, error) from error
