"""The Parquet files of archives and snapshots: reading in batches, writing."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import google_crc32c

from imap_wal.errors import (
    CorruptLog,
    EncryptionError,
    Forged,
    ImapWalError,
    InvalidSetting,
)
from imap_wal.parquet.columns import stored_schemas
from imap_wal.parquet.contents import open_checked
from imap_wal.parquet.log_order import sorted_by_position
from imap_wal.security.encryption import archive_key, archive_keys, keys_of
from imap_wal.security.encryption_keys import NO_KEYS, PLAIN, Keys
from storage_backends import AlreadyExists, SegmentStore
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

GROUP_ROWS_MAX = 65_536
GROUP_BYTES_MAX = 32 * 1024 * 1024
"""Approximate size of a row group in bytes: the memory that a reader or writer needs for a file."""
BATCH_BYTES = 4 * 1024 * 1024
"""Approximate size of a batch that is read, unpacked."""

ROWS = b"imap-wal.rows"
BY_KEY = b" by key"
"""After the number of rows, if the rows of an archive are sorted by key and then by position, and
not in the order of the log. It is the same field, so that no damaged bit changes only one."""
KEY_LEVEL = 2
"""Of zstd, for files that are sorted by key: a fifth smaller than with level 1, pyarrow's own."""
PATH = b"imap-wal.path"
LOG = b"imap-wal.log"
"""In an encrypted file: the path for which it was written, and for an archive its log."""
PLAIN_MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
DICTIONARIES = ["map", "key_class", "value_class", "node"]


# ---- reading -------------------------------------------------------------------------------------


def batches(
    store: SegmentStore,
    path: str,
    columns: list[str] | None = None,
    rows_max: int = 8192,
    *,
    checksum: int = 0,
    records: int = 0,
    log: str = "",
    by_position: bool = False,
    keys: Collection[bytes] | None = None,
    span: tuple[bytes, bytes | None] | None = None,
) -> Iterator[Any]:
    """The record batches of an imap-wal Parquet file. Raises `NotFound`, `CorruptLog`, and
    `StorageUnavailable` if this machine has no space for a copy. `checksum` of the whole file and
    `records` are those in the manifest; 0: unknown. `log`: see `open_parquet`. `by_position`: rows
    of an archive in the order of the log, which is not that of every file; `columns` must include
    the positions. `keys`, `span` (a range: from the first on and below the second, None: no end):
    row groups that have none of these, and no clear, are left out.

    Pages have checksums but the footer has none, and one flipped bit in it can make a file look
    empty. So the file has its number of rows in a second place."""
    with _reading(store, path, checksum, log) as file:
        is_by_key = _is_by_key(file, path, group_rows(file))
        groups = [
            group
            for group in range(file.num_row_groups)
            if keys is None or _may_have(file, group, (b"", *keys))
            if span is None or _may_overlap(file, group, span)
        ]
        found = group_rows(file) - sum(file.metadata.row_group(group).num_rows for group in groups)
        read = _every(file, groups, columns, rows_max)
        if is_by_key and by_position:
            read = sorted_by_position(read)
        for batch in read:
            found += len(batch)
            yield batch
        _is_by_key(file, path, found)
    if records and found != records:
        what = f"this Parquet file has {found} rows, the manifest says {records}"
        raise CorruptLog(path, 0, what, "restore it from a copy")


def _every(
    file: Any, groups: Sequence[int], columns: list[str] | None, rows_max: int
) -> Iterator[Any]:
    # One group at a time: a pass over all groups would keep in memory all that it has read.
    for group in groups:
        count = _batch_rows(file.metadata.row_group(group), columns, rows_max)
        for batch in file.iter_batches(count, row_groups=[group], columns=columns):
            validate(batch)
            yield batch


def _may_have(file: Any, group: int, keys: Collection[bytes]) -> bool:
    """Whether a row group may have one of the keys."""
    known = _key_range(file, group)
    return known is None or any(known[0] <= key <= known[1] for key in keys)


def _may_overlap(file: Any, group: int, span: tuple[bytes, bytes | None]) -> bool:
    """Whether a row group may have a key of a range, or a clear, whose key is empty."""
    known, (lower, upper) = _key_range(file, group), span
    if known is None or not known[0]:
        return True
    return known[1] >= lower and (upper is None or known[0] < upper)


def _key_range(file: Any, group: int) -> tuple[bytes, bytes] | None:
    """The first and the last key of a row group. None: unknown. Long keys have no statistics, and
    files of earlier versions have none at all."""
    column = file.schema.names.index("key")
    known = file.metadata.row_group(group).column(column).statistics
    return None if known is None or not known.has_min_max else (known.min, known.max)


def group_rows(file: Any) -> int:
    """The number of rows of a `pyarrow.parquet.ParquetFile`, by its index."""
    groups = range(file.num_row_groups)
    return sum(file.metadata.row_group(group).num_rows for group in groups)


def promise_of(rows: int, by_key: bool) -> bytes:
    """The content of the field `ROWS`."""
    return b"%d" % rows + (BY_KEY if by_key else b"")


def _is_by_key(file: Any, path: str, rows: int) -> bool:
    """Whether rows are sorted by key. Raises `CorruptLog` if the file says another number of rows:
    then its order is unknown too."""
    promised = (file.metadata.metadata or {}).get(ROWS)
    if promised not in (promise_of(rows, False), promise_of(rows, True)):
        promise = "nothing" if promised is None else f"{promised.decode(errors='replace')} rows"
        what = f"this Parquet file promises {promise} and has {rows} rows"
        raise CorruptLog(path, 0, what, "restore it from a copy")
    return bool(promised == promise_of(rows, True))


def group_batches(
    store: SegmentStore, path: str, columns: list[str], groups: Sequence[int], *, records: int
) -> Iterator[tuple[int, Any]]:
    """The record batches of some row groups, which increase, each with the number of its first row
    in the file. `records`: of the whole file. It is not compared with a checksum: other readers
    read its other groups. Raises `NotFound` and `CorruptLog`."""
    with _reading(store, path, 0, "") as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        if sum(sizes) != records or (groups and groups[-1] >= len(sizes)):
            what = f"this Parquet file has {sum(sizes)} rows, and {records} were written"
            raise CorruptLog(path, 0, what, "restore it from a copy")
        for group in groups:
            first = sum(sizes[:group])
            count = _batch_rows(file.metadata.row_group(group), columns, GROUP_ROWS_MAX)
            for batch in file.iter_batches(count, row_groups=[group], columns=columns):
                validate(batch)
                yield first, batch
                first += len(batch)


def rows_at(
    store: SegmentStore, path: str, rows: Any, columns: list[str], *, log: str = ""
) -> Iterator[Any]:
    """Only some rows of a file, in batches: those with the numbers `rows`, an Arrow array of
    integers that increase. Row groups without such a row are not read. The whole file must have
    been read with `batches` before: its checksum is not compared again. Raises `NotFound`
    and `CorruptLog`."""
    with _reading(store, path, 0, log) as file:
        start = first = 0
        for group in range(file.num_row_groups):
            described = file.metadata.row_group(group)
            if start == len(rows) or rows[start].as_py() >= first + described.num_rows:
                first += described.num_rows
                continue
            count = _batch_rows(described, columns, GROUP_ROWS_MAX)
            for batch in file.iter_batches(count, row_groups=[group], columns=columns):
                stop = bisect_left(rows, first + len(batch), start, key=_number)
                if stop > start:
                    validate(batch)
                    yield batch.take(pc.subtract(rows.slice(start, stop - start), first))
                start, first = stop, first + len(batch)
        if start < len(rows):
            what = f"this Parquet file has {first} rows now, and had more before"
            raise CorruptLog(path, 0, what, "restore it from a copy")


def _number(scalar: Any) -> int:
    return int(scalar.as_py())


def _batch_rows(described: Any, columns: list[str] | None, rows_max: int) -> int:
    """How many rows of a row group are about `BATCH_BYTES` in these columns; at most `rows_max`."""
    chunks = [described.column(index) for index in range(described.num_columns)]
    size = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if columns is None or chunk.path_in_schema in columns
    )
    return int(max(1, min(rows_max, BATCH_BYTES * described.num_rows // max(1, size))))


@contextmanager
def _reading(store: SegmentStore, path: str, checksum: int, log: str) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` of ours. What pyarrow raises for damage while it is open
    becomes `CorruptLog`."""
    with open_checked(store, path, checksum) as source:
        try:
            file = open_parquet(source, path, keys_of(store), log)
            if file.schema not in stored_schemas():
                raise CorruptLog(
                    path,
                    0,
                    f"this Parquet file has columns {file.schema.names}, or types, that are "
                    "not ours",
                    "restore it from a copy",
                )
            yield file
        except ImapWalError:
            raise  # some of them are ValueErrors
        except (
            pa.ArrowException,
            OSError,
            EOFError,
            ValueError,
            LookupError,
            TypeError,
        ) as error:  # a damaged footer
            raise CorruptLog(
                path, 0, f"this Parquet file cannot be read ({error})", "restore it from a copy"
            ) from error


def open_parquet(source: BinaryIO, path: str, keys: Keys, log: str) -> Any:
    """An imap-wal `pyarrow.parquet.ParquetFile`, opened with its key. `log`: the log directory that
    an encrypted archive must have; "": a snapshot, or unknown. Raises `EncryptionError`, `Forged`,
    and pyarrow's errors for a damaged file."""
    return _opened(source, path, keys, log)[0]


def written_otherwise(store: SegmentStore, path: str) -> bool:
    """Whether a Parquet file was written without a key or with another key than the current one.
    Raises `NotFound`, and the errors of `open_parquet`."""
    keys = keys_of(store)
    if keys is NO_KEYS:
        return False
    with store.open_input(path) as source:
        return _opened(source, path, keys, "")[1] != keys.key_ring.active


def _opened(source: BinaryIO, path: str, keys: Keys, log: str) -> tuple[Any, str]:
    """A Parquet file, and the id of its key."""
    options = {"read_dictionary": DICTIONARIES, "page_checksum_verification": True}
    source.seek(max(source.seek(0, os.SEEK_END) - len(PLAIN_MAGIC), 0))
    magic = source.read(len(PLAIN_MAGIC))  # at the end of the file, where every reader looks
    source.seek(0)
    if magic != ENCRYPTED_MAGIC:
        if magic == PLAIN_MAGIC:
            keys.demand_plain(path)
        return pq.ParquetFile(source, **options), PLAIN
    for name, key in archive_keys(keys).items():
        try:
            file = pq.ParquetFile(
                source,
                decryption_properties=_encryption().create_decryption_properties(key),
                **options,
            )
        except OSError:  # another key, or a damaged footer: it is unknown which
            source.seek(0)
            continue
        said = file.metadata.metadata or {}
        written_as = said.get(PATH)
        if written_as != path.encode():
            shown = "" if written_as is None else written_as.decode(errors="replace")
            raise Forged(
                path,
                0,
                f"this file was written as {shown!r}: it was moved or exchanged",
                "bring the right file back from a copy",
            )
        if log and said.get(LOG) != log.encode():
            shown = said.get(LOG, b"").decode(errors="replace")
            what = (
                f"this file is of log directory {shown!r}, and this log has the directory "
                f"{log!r}: it was moved here"
            )
            raise Forged(path, 0, what, "bring the right file back from a copy")
        return file, name
    raise EncryptionError(
        path,
        "",
        f"it is encrypted, {keys.known_ids}: its key is missing",
        keys.advice,
        is_missing=True,
    )


def _encryption() -> Any:
    """pyarrow's encryption module. Raises `InvalidSetting` if this version does not accept keys."""
    try:
        import pyarrow.parquet.encryption as found

        found.create_encryption_properties  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise InvalidSetting(
            "encrypted archives need another pyarrow: pip install 'imap-wal[encryption]'"
        ) from error
    return found


def validate(batch: Any) -> None:
    """Raise an ArrowException for a page that was read with another column's dictionary."""
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)


# ---- writing -------------------------------------------------------------------------------------


class Published(NamedTuple):
    """The facts about a file for the manifest: its size, and the CRC-32C of all its bytes."""

    bytes: int
    checksum: int


def checksum(file: BinaryIO) -> int:
    """CRC-32C of a file, from its current offset."""
    found = 0
    while data := file.read(1024 * 1024):
        found = google_crc32c.extend(found, data)
    return found


class ParquetFile:
    """A Parquet file that is written to local disk, one row group at a time, and then published as
    a whole."""

    def __init__(
        self, folder: Path, schema: Any, keys: Keys, log: str = "", *, by_key: bool = False
    ) -> None:
        """`keys`: those of its store (`keys_of`). `log`: directory of the log whose archive it is.
        `by_key`: its rows are sorted by key and position."""
        self._log, self._by_key = log, by_key
        self._schema = schema
        key_ring = keys.key_ring
        self._encrypted = key_ring.active != PLAIN
        key = archive_key(key_ring.keys[key_ring.active]) if self._encrypted else b""
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".parquet", delete=False) as file:
            self.local = Path(file.name)
        self._writer = pq.ParquetWriter(
            self.local,
            schema,
            compression="zstd",
            compression_level=KEY_LEVEL if by_key else None,
            use_dictionary=DICTIONARIES,
            write_statistics=["map", "key", "timestamp_ms"],
            store_schema=False,
            write_page_checksum=True,
            encryption_properties=_encryption().create_encryption_properties(key) if key else None,
        )
        self._batches: list[Any] = []
        self._rows = 0
        self.buffered = 0
        self.records = 0
        self.tombstones = 0

    def write(self, batch: Any, tombstones: int) -> None:
        """Add rows; they are on disk after `flush`."""
        self._batches.append(batch)
        self._rows += len(batch)
        self.buffered += batch.nbytes
        self.records += len(batch)
        self.tombstones += tombstones
        if self._rows >= GROUP_ROWS_MAX or self.buffered >= GROUP_BYTES_MAX:
            self.flush()

    def write_groups(self, batch: Any, rows: int) -> None:
        """Write a batch in row groups of `rows` rows. They are on disk at once."""
        self.flush()
        table = pa.Table.from_batches([batch], self._schema)
        self._writer.write_table(table, row_group_size=rows)
        self.records += len(batch)
        self.tombstones += batch.column("deleted").true_count

    def flush(self) -> None:
        """End the row group."""
        if self._batches:
            self._writer.write_table(
                pa.Table.from_batches(self._batches, self._schema), row_group_size=GROUP_ROWS_MAX
            )
        self._batches, self._rows, self.buffered = [], 0, 0

    def publish(self, store: SegmentStore, path: str) -> Published:
        """Close it and publish it under a name that no other run chooses. Raises `AlreadyExists` if
        another file has that name."""
        if self._encrypted and self._writer.is_open:
            self._writer.add_key_value_metadata(
                {PATH: path.encode(), **({LOG: self._log.encode()} if self._log else {})}
            )
        self._close()
        try:
            store.create_from(path, str(self.local))
        except AlreadyExists:
            published = self.discard()
            with store.open_input(path) as there:
                if checksum(there) != published.checksum:
                    raise
            return published  # it is this run's own file: only the response was lost
        return self.discard()

    def discard(self) -> Published:
        """Close it without publishing."""
        self._close()
        with self.local.open("rb") as file:
            published = Published(self.local.stat().st_size, checksum(file))
        with suppress(OSError):  # its folder is removed soon
            self.local.unlink()
        return published

    def _close(self) -> None:
        self.flush()
        if self._writer.is_open:
            self._writer.add_key_value_metadata({ROWS: promise_of(self.records, self._by_key)})
        self._writer.close()
