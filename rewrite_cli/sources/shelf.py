"""Reads a shelf of `shelve`: pickled values under text, in a file of any module of `dbm`."""

from __future__ import annotations

import dbm
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rewrite_cli.console.failures import Failed
from rewrite_cli.sources.database import columns_of, is_database, open_database, reading, size_of
from rewrite_cli.sources.source import Source, Stored, damaged

SQLITE = "dbm.sqlite3"
SUFFIXES = ("", ".dat", ".dir", ".db", ".pag")
"""Of the files that a module of `dbm` creates for one name."""


class Shelf(Source):
    """`name`: of the map."""

    def __init__(self, path: Path, name: str, load: Callable[[bytes], Any]) -> None:
        path = _without_suffix(path)
        self._path, self._map, self._load = path, name or path.stem, load
        self._database: Any = None
        self.bytes = sum(
            size_of(file)
            for file in (path.with_name(path.name + suffix) for suffix in SUFFIXES)
            if file.is_file()
        )
        self._module = _module_of(path)
        with self._reading():
            if self._module == SQLITE:
                self._database = open_database(path)
                if columns_of(self._database).get("Dict") != ["key", "value"]:
                    raise damaged(path, "it has no table Dict of dbm.sqlite3")
            else:
                self._database = _import(self._module, path).open(str(path), "r")

    def maps(self) -> list[str]:
        return [self._map]

    def entries(self) -> Iterator[Stored]:
        with self._reading():
            for key, value in self._pairs():
                yield Stored(
                    self._map,
                    key.decode(errors="backslashreplace"),
                    partial(key.decode),
                    partial(self._load, value),
                    len(key) + len(value),
                )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _pairs(self) -> Iterator[tuple[bytes, bytes]]:
        if self._module == SQLITE:
            rows = self._database.execute("SELECT key, value FROM Dict")
            for key, value in rows:
                yield _bytes(key), _bytes(value)
        elif hasattr(self._database, "firstkey"):  # dbm.gnu
            key = self._database.firstkey()
            while key is not None:
                yield key, self._database[key]
                key = self._database.nextkey(key)
        else:
            for key in self._database.keys():  # noqa: SIM118  those of dbm.ndbm are not iterable
                yield key, self._database[key]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Every module of `dbm` has errors of its own; those of a damaged index may have any
        type."""
        try:
            yield
        except Failed:
            raise
        except Exception as error:
            raise damaged(self._path, error) from error


def _bytes(data: object) -> bytes:
    return data if isinstance(data, bytes) else str(data).encode(errors="surrogateescape")


def _without_suffix(path: Path) -> Path:
    """The name that was passed to `shelve.open`, if this is one of its files."""
    if path.suffix in SUFFIXES and not is_database(path):
        name = path.with_suffix("")
        with suppress(OSError):
            if dbm.whichdb(str(name)):
                return name
    return path


def _module_of(path: Path) -> str:
    with reading(path):
        if is_database(path):
            return SQLITE  # `whichdb` knows it from Python 3.13 on
    module = dbm.whichdb(str(path))
    if module:
        return module
    if module is None:
        raise Failed(
            f"{path}: there is no such shelf; pass the name that the program passes to shelve.open"
        )
    raise Failed(f"{path} is not a file of dbm, in which shelve stores its entries")


def _import(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Failed(
            f"{path} is a file of {module}, which this Python does not have: run the command with "
            "the Python that wrote it, or install that module (Debian: python3-gdbm)"
        ) from error
