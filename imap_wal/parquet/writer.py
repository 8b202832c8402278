"""Writes a Parquet file of an archive or a snapshot."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from imap_wal import contents
from imap_wal.contents import Published
from imap_wal.parquet.columns import DECODED_FIELDS
from imap_wal.parquet.decoded_columns import DecodedColumns
from imap_wal.parquet.file import (
    DICTIONARIES,
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    LOG,
    PATH,
    ROWS,
    encryption,
    promise_of,
)
from imap_wal.security.encryption import archive_key
from imap_wal.security.encryption_keys import PLAIN, Keys
from storage_backends import SegmentStore
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.parquet as pq

KEY_LEVEL = 2
"""The zstd level for files that are sorted by key: they are a fifth smaller than with level 1,
pyarrow's default."""
WITHOUT_STATISTICS = {"value", "value_json"}
"""Columns of which row groups have no lowest and highest value: no query compares them. Archives
have these for `OF_ARCHIVES` only. Snapshots are also tables of other programs, which skip row
groups by them."""
OF_ARCHIVES = ("map", "key", "timestamp_ms")


class ParquetFile:
    """A Parquet file that is written to local disk, one row group at a time, and then published as
    a whole."""

    def __init__(
        self,
        folder: Path,
        schema: Any,
        keys: Keys,
        log: str = "",
        *,
        group_rows: int = GROUP_ROWS_MAX,
        group_bytes: int = GROUP_BYTES_MAX,
        decoded: DecodedColumns | None = None,
    ) -> None:
        """`keys`: the keys for writing; the active one encrypts the file. `log`: directory of
        the log whose archive it is. A row group ends when it has `group_rows` rows, or
        `group_bytes` in memory, without the columns of `decoded`. The rows of an archive are sorted
        by key and position."""
        self._log, self._decoded = log, decoded
        self._group_rows, self._group_bytes = group_rows, group_bytes
        self._schema = schema
        key_ring = keys.key_ring
        self._encrypted = key_ring.active != PLAIN
        key = archive_key(key_ring.keys[key_ring.active]) if self._encrypted else b""
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".parquet", delete=False) as file:
            self.local = Path(file.name)
        if decoded is not None:
            schema = pa.schema([*schema, *DECODED_FIELDS])
        is_archive = "epoch" in schema.names
        compared = [name for name in schema.names if name not in WITHOUT_STATISTICS]
        self._writer = pq.ParquetWriter(
            self.local,
            schema,
            compression="zstd",
            compression_level=KEY_LEVEL if is_archive else None,
            use_dictionary=DICTIONARIES,
            write_statistics=list(OF_ARCHIVES) if is_archive else compared,
            store_schema=False,
            write_page_checksum=True,
            encryption_properties=encryption().create_encryption_properties(key) if key else None,
        )
        self._batches: list[Any] = []
        self._rows = 0
        self.buffered = 0
        self.groups = 0
        """How many row groups have ended."""
        self.records = 0
        self.tombstones = 0

    def fitting(self, batch: Any) -> int:
        """About how many rows of a batch the current row group can take; at least one."""
        by_size = (self._group_bytes - self.buffered) * len(batch) // max(1, batch.nbytes)
        return int(max(1, min(self._group_rows - self._rows, by_size)))

    def write(self, batch: Any, tombstones: int) -> None:
        """Add rows; they are on disk after `flush`."""
        self._batches.append(batch)
        self._rows += len(batch)
        self.buffered += batch.nbytes
        self.records += len(batch)
        self.tombstones += tombstones
        if self._rows >= self._group_rows or self.buffered >= self._group_bytes:
            self.flush()

    def write_groups(self, batch: Any, rows: int) -> None:
        """Write a batch in row groups of `rows` rows. They are on disk at once."""
        self.flush()
        self._write([batch], rows)
        self.groups += -(-len(batch) // rows)
        self.records += len(batch)
        self.tombstones += batch.column("deleted").true_count

    def flush(self) -> None:
        """End the row group."""
        if self._batches:
            self._write(self._batches, self._group_rows)
            self.groups += -(-self._rows // self._group_rows)
        self._batches, self._rows, self.buffered = [], 0, 0

    def _write(self, batches: list[Any], rows: int) -> None:
        table = pa.Table.from_batches(batches, self._schema)
        if self._decoded is not None:
            table = self._decoded.added(table)
        self._writer.write_table(table, row_group_size=rows)

    def publish(self, store: SegmentStore, path: str) -> Published:
        """Close it and publish it under a name that no other run chooses. Raises `AlreadyExists` if
        another file has that name."""
        if self._encrypted and self._writer.is_open:
            self._writer.add_key_value_metadata(
                {PATH: path.encode(), **({LOG: self._log.encode()} if self._log else {})}
            )
        self._close()
        return contents.publish(store, path, self.local, self.discard)

    def discard(self) -> Published:
        """Close it without publishing."""
        self._close()
        return contents.discard(self.local)

    def _close(self) -> None:
        self.flush()
        if self._writer.is_open:
            self._writer.add_key_value_metadata(
                {ROWS: promise_of(self.records, self._schema.names)}
            )
        self._writer.close()
