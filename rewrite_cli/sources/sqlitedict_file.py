"""Reads a file of `sqlitedict`: tables with pickled values under text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.sources.database import columns_of, open_database, quoted, reading, size_of
from rewrite_cli.sources.source import Source, Stored, Unreadable

COLUMNS = ["key", "value"]


class SqlitedictFile(Source):
    """`tables`: only these; none: all. `name`: of the map, if there is one table."""

    def __init__(
        self, path: Path, name: str, load: Callable[[bytes], Any], tables: Collection[str] = ()
    ) -> None:
        self._path, self._load = path, load
        if not path.is_file():
            raise Failed(f"{path}: there is no such file")
        self.bytes = size_of(path)
        self._database = open_database(path)
        with reading(path):
            columns = columns_of(self._database)
        present = [table for table, names in columns.items() if names == COLUMNS]
        absent = sorted({*tables} - {*present})
        if absent or not present:
            raise Failed(
                f"{path}: no table of sqlitedict {out.names(absent)}; it has {out.names(present)}"
            )
        chosen = [table for table in present if not tables or table in tables]
        if name and len(chosen) > 1:
            raise click.UsageError(
                f"--map names one map, but {path} has the tables {out.names(chosen)}: choose one "
                "with --table"
            )
        self._names = {table: name or table for table in chosen}

    def maps(self) -> list[str]:
        return [*self._names.values()]

    def entries(self) -> Iterator[Stored]:
        with reading(self._path):
            for table, name in self._names.items():
                rows = self._database.execute(
                    f"SELECT key, value FROM {quoted(table)}"  # noqa: S608
                )
                for key, value in rows:
                    yield Stored(
                        name,
                        key,
                        partial(_text, key),
                        partial(self._loaded, value),
                        len(str(key)) + (len(value) if isinstance(value, bytes | str) else 8),
                    )

    def close(self) -> None:
        self._database.close()

    def _loaded(self, value: object) -> Any:
        if not isinstance(value, bytes):
            raise Unreadable("it is not a pickle: the program has its own `encode`")
        return self._load(value)


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise Unreadable("its key is not text: the program has its own `encode_key`")
    return key
