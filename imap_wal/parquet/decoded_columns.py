"""Keys and values of Parquet files in readable form, beside their bytes, for the maps that the
cluster's manifest names: DuckDB, pandas and Spark read them without imap-wal. No reader of a log
uses these columns. See decision 73 in docs/decisions/files.md."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from imap_wal.decoder import Decoder, Opaque
from imap_wal.encoder import json_of, json_of_plain, key_of
from imap_wal.entry import KEY, MAP, ORDER, VALUE, Row, is_clear
from imap_wal.parquet.columns import DECODED_FIELDS, SNAPSHOT_SCHEMA, to_rows
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

_log = logging.getLogger("imap_wal.parquet")

DATA_BYTES_MAX = 1024 * 1024
"""Longer keys and values are not decoded: as Python objects they take many times their bytes."""
TEXT_FACTOR, TEXT_BYTES = 8, 4096
"""A text that is longer than `TEXT_FACTOR` times its bytes and `TEXT_BYTES` is left out: all texts
of a row group must fit into one column."""


class DecodedColumns:
    """Adds the two columns to rows of maps with a matching name. Thread-safe. `patterns`: names of
    maps, with `*` and `?`. `schemas`: those of the log's metadata."""

    def __init__(self, patterns: Sequence[str], schemas: Iterable[tuple[Any, ...]] = ()) -> None:
        # A bracket is a part of a name: only `*` and `?` have a meaning.
        self._patterns = tuple(pattern.replace("[", "[[]") for pattern in patterns)
        self._decoder = Decoder(schemas)
        self._mutex = threading.Lock()
        self._missing = False

    def of(self, name: str) -> DecodedColumns | None:
        """The columns of a map's files; None: it has none."""
        return self if any(fnmatchcase(name, pattern) for pattern in self._patterns) else None

    def learn(self, schemas: Iterable[tuple[Any, ...]]) -> None:
        """Add schemas that were found while reading."""
        with self._mutex:
            self._decoder.add_metadata(schemas)

    def added(self, table: Any) -> Any:
        """A table of rows, with the two columns at its end. NULL: there is none (of a tombstone or
        a clear), or it cannot be decoded here."""
        keys: list[str | None] = []
        values: list[str | None] = []
        with self._mutex:
            for batch in table.select(SNAPSHOT_SCHEMA.names).to_batches():
                for row in to_rows(batch):
                    keys.append(self._found(self._key, row))
                    values.append(self._found(self._value, row))
        for field, column in zip(DECODED_FIELDS, (keys, values), strict=True):
            table = table.append_column(field, pa.array(column, pa.string()))
        return table

    def _found(self, of: Callable[[Row], str | None], row: Row) -> str | None:
        """A text, or None. An archive run or a rewrite must not fail because of it."""
        if self._missing and row[ORDER][1]:  # of a member
            return None
        try:
            return of(row)
        except ModuleNotFoundError as error:
            _log.warning("readable columns are left empty: %s", error)
            self._missing = True
        except Exception:  # noqa: BLE001  # any value may be broken in any way
            _log.debug("a key or a value of map %r cannot be decoded", row[MAP], exc_info=True)
        return None

    def _key(self, row: Row) -> str | None:
        if is_clear(row) or len(row[KEY]) > DATA_BYTES_MAX:
            return None
        if isinstance(self._decoder.key(row), Opaque):
            return None
        return _bounded(json_of_plain(key_of(row, self._decoder)), row[KEY])

    def _value(self, row: Row) -> str | None:
        data = row[VALUE]
        if data is None or len(data) > DATA_BYTES_MAX:
            return None
        value = self._decoder.value(row)
        return None if isinstance(value, Opaque) else _bounded(json_of(value), data)


def _bounded(text: str, data: bytes) -> str | None:
    size = len(text) if text.isascii() else len(text.encode())
    return text if size <= TEXT_FACTOR * len(data) + TEXT_BYTES else None
