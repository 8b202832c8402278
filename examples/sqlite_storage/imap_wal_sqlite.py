"""A storage for imap-wal in one SQLite file: sqlite:///var/lib/maps.db"""

from __future__ import annotations

import builtins
import io
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from imap_wal.storage import (
    DEFAULT_LEASE_MS,
    AlreadyExists,
    Backend,
    Capabilities,
    Held,
    HeldByAnswer,
    Immutable,
    Linked,
    NotFound,
    Opening,
    StorageError,
    StoredFile,
    Unavailable,
    check_path,
    discard_each,
    folder_prefix,
)

BACKEND = Backend("imap_wal_sqlite:opened", takes_options=False)

_TABLE = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT UNIQUE, modified_ms INTEGER, data BLOB
)"""


def opened(opening: Opening) -> SqliteStore:
    return SqliteStore(opening)


class SqliteStore(Immutable):
    """Whole files, each in one row; `Immutable` has the lock, and refuses appends."""

    def __init__(self, opening: Opening) -> None:
        self.url = opening.url
        self.capabilities = Capabilities(
            durable_append=False,
            durable_sync=True,
            exclusive_create=True,
            atomic_replace=True,
            preallocate=False,
            locks=False,
        )
        self._file = opening.url.removeprefix("sqlite://")
        if not Path(self._file).is_absolute():
            raise StorageError("an SQLite URL has three slashes, as in sqlite:///var/lib/maps.db")
        self._clock_ms, self._lease_ms = opening.clock_ms, DEFAULT_LEASE_MS

    def list(self, folder: str) -> builtins.list[StoredFile]:
        front = folder_prefix(folder)
        rows = self._ask(
            "SELECT path, length(data), modified_ms FROM files "
            "WHERE substr(path, 1, length(?1)) = ?1 ORDER BY path",
            front,
        )
        return [StoredFile(*row) for row in rows]

    def folders(self, folder: str) -> builtins.list[str]:
        front = folder_prefix(folder)
        below = (file.path.removeprefix(front) for file in self.list(folder))
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    def exists(self, path: str) -> bool:
        return bool(self._ask("SELECT 1 FROM files WHERE path = ?", check_path(path)))

    def hold(self, path: str) -> Held:
        return HeldByAnswer(path, lambda: self._one("id", path))

    def size(self, path: str) -> int:
        return int(self._one("length(data)", path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else offset + length
        return bytes(self._one("data", path))[offset:end]

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def create(self, path: str, data: bytes) -> None:
        self._write("INSERT", path, data)

    def create_from(self, path: str, local_file: str) -> None:
        try:
            data = Path(local_file).read_bytes()
        except OSError as error:
            raise StorageError(f"{local_file}: {error}", path) from error
        self.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._write("INSERT OR REPLACE", path, data)

    def delete(self, path: str) -> None:
        self._ask("DELETE FROM files WHERE path = ?", check_path(path))

    def discard(self, path: str) -> None:
        self.delete(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    def close(self) -> None:
        pass

    def _write(self, verb: str, path: str, data: bytes) -> None:
        self._ask(
            f"{verb} INTO files (path, modified_ms, data) VALUES (?, ?, ?)",
            check_path(path),
            self._clock_ms(),
            data,
        )

    def _one(self, column: str, path: str) -> Any:
        rows = self._ask(f"SELECT {column} FROM files WHERE path = ?", check_path(path))
        if not rows:
            raise NotFound("no such file", path)
        return rows[0][0]

    def _ask(self, query: str, *values: Any) -> builtins.list[Any]:
        """One transaction, durable on return."""
        try:
            with closing(sqlite3.connect(self._file, timeout=60)) as database, database:
                database.execute("PRAGMA synchronous = EXTRA")
                database.execute(_TABLE)
                return database.execute(query, values).fetchall()
        except sqlite3.IntegrityError as error:
            raise AlreadyExists("a file of this name already exists", values[0]) from error
        except sqlite3.Error as error:
            raise Unavailable(f"the storage failed: {error}", "", self.url) from error
