"""Reads a folder of `diskcache`: of a Cache, Index or Deque, or the shards of a FanoutCache.

    mode 1  as in the table        3  text in a file
         2  bytes in a file        4  a pickle, in the table or in a file

A JSONDisk has JSON instead, compressed by zlib, for keys and values. Only its keys show it.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rewrite_cli.console.failures import Failed
from rewrite_cli.sources.database import open_database, quoted, reading, size_of
from rewrite_cli.sources.pickles import BYTES_MAX
from rewrite_cli.sources.source import Source, Stored, Unreadable, damaged

RAW, BINARY, TEXT, PICKLE = 1, 2, 3, 4
DATABASE = "cache.db"
COLUMNS = ("key", "raw", "expire_time", "tag", "size", "mode", "filename", "value")
FOREVER_MS = 2**62


class DiskcacheFolder(Source):
    """`name`: of the map."""

    def __init__(self, path: Path, name: str, load: Callable[[bytes], Any]) -> None:
        self._map, self._load = name or path.resolve().name, load
        shards = [path, *sorted(path.glob("[0-9][0-9][0-9]"))]
        self._folders = [folder for folder in shards if (folder / DATABASE).is_file()]
        if not self._folders:
            raise Failed(f"{path} is not a folder of diskcache: it has no {DATABASE}")
        self.bytes, self.equal_keys = 0, False
        self._tags: dict[str, int] = {}
        self.lost: Mapping[str, int] = self._tags
        self._databases: list[sqlite3.Connection] = []
        for folder in self._folders:
            file = folder / DATABASE
            database = open_database(file)
            self._databases.append(database)
            with reading(file):
                kinds = database.execute("SELECT type FROM sqlite_master WHERE name = 'Cache'")
                if kinds.fetchall() != [("table",)]:
                    raise damaged(file, "it has no table Cache of diskcache")
                (pickled,) = database.execute(
                    "SELECT EXISTS (SELECT 1 FROM Cache WHERE raw = 0)"
                ).fetchone()
                (stored,) = database.execute("SELECT coalesce(sum(size), 0) FROM Cache").fetchone()
            self.equal_keys |= bool(pickled)
            self.bytes += size_of(file) + (stored if isinstance(stored, int) else 0)

    def maps(self) -> list[str]:
        return [self._map]

    def entries(self) -> Iterator[Stored]:
        tags = 0
        for folder, database in zip(self._folders, self._databases, strict=True):
            with reading(folder / DATABASE):
                first = database.execute("SELECT key FROM Cache LIMIT 1").fetchall()
                is_json = any(_is_json(key) for (key,) in first)
                columns = ", ".join(map(quoted, COLUMNS))
                rows = database.execute(
                    f"SELECT {columns} FROM Cache ORDER BY rowid"  # noqa: S608
                )
                for key, raw, expire_time, tag, size, mode, filename, value in rows:
                    tags += tag is not None
                    read_key = partial(self._key, key, raw, is_json)
                    read = partial(self._value, folder, mode, filename, value, is_json)
                    inline = len(value) if isinstance(value, bytes | str) else 8
                    large = size if isinstance(size, int) else 0
                    inline_key = len(key) if isinstance(key, bytes) else 0
                    name = key if raw else f"a pickled key of {inline_key} bytes"
                    yield Stored(
                        self._map, name, read_key, read, inline + large, _expiry(expire_time)
                    )
        if tags:
            self._tags["tags"] = tags

    def close(self) -> None:
        for database in self._databases:
            database.close()

    def _key(self, key: Any, raw: int, is_json: bool) -> Any:
        if is_json:
            return _json(key)
        return key if raw else self._load(_blob(key))

    def _value(
        self, folder: Path, mode: int, filename: str | None, value: Any, is_json: bool
    ) -> Any:
        data = value if filename is None else _content(folder, filename)
        if is_json:
            return _json(data)
        if mode == PICKLE:
            return self._load(_blob(data))
        if mode == TEXT:
            return _blob(data).decode()
        if mode not in (RAW, BINARY):
            raise Unreadable(f"it has the mode {mode}, which diskcache does not have")
        return data


def _expiry(expire_time: Any) -> int:
    if not isinstance(expire_time, int | float):
        return 0
    return int(max(1.0, min(expire_time * 1000, FOREVER_MS)))  # 0 would be: never


def _content(folder: Path, filename: str) -> bytes:
    path = (folder / filename).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Unreadable(f"its file {filename} is outside the folder")
    try:
        if path.stat().st_size > BYTES_MAX:
            raise Unreadable(f"its file {filename} has more than {BYTES_MAX:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"its file {filename} cannot be read: {error.strerror}") from error


def _blob(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise Unreadable(f"it is a {type(data).__name__} where diskcache has bytes")
    return data


def _is_json(key: object) -> bool:
    try:
        _json(key)
    except (ValueError, zlib.error):
        return False
    return True


def _json(data: Any) -> Any:
    inflated = zlib.decompressobj()
    text = inflated.decompress(_blob(data), BYTES_MAX)
    if inflated.unconsumed_tail:
        raise Unreadable(f"it has more than {BYTES_MAX:,} bytes")
    return json.loads(text)
