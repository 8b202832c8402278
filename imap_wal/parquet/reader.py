"""Reads the rows of the Parquet files of archives and snapshots, in batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from imap_wal.contents import open_checked
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, ImapWalError
from imap_wal.parquet.columns import DECODED_FIELDS, stored_schemas
from imap_wal.parquet.file import GROUP_ROWS_MAX, demand_rows, open_parquet
from imap_wal.parquet.log_order import sorted_by_position
from imap_wal.rules.arrow import pc
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

BATCH_BYTES = 4 * 1024 * 1024
"""Approximate size of a batch that is read, unpacked."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a manifest says about a file: the `checksum` of all its bytes and the number of
    `records`; 0: unknown. `log`: see `open_parquet`."""

    checksum: int = 0
    records: int = 0
    log: str = ""


UNKNOWN = Expected()


def batches(
    context: Context,
    path: str,
    columns: list[str] | None = None,
    rows_max: int = 8192,
    *,
    expected: Expected = UNKNOWN,
    by_position: bool = False,
    keys: Collection[bytes] | None = None,
    span: tuple[bytes, bytes | None] | None = None,
) -> Iterator[Any]:
    """The record batches of an imap-wal Parquet file. Raises `NotFound`, `CorruptLog`, and
    `StorageUnavailable` if this machine has no space for a copy. `by_position`: rows of an archive
    in the order of the log, which is not that of the file; `columns` must include the positions.
    `keys`, `span` (a range: from the first on and below the second, None: no end): row groups that
    have none of these, and no clear, are left out.

    Pages have checksums but the footer has none, and one flipped bit in it can make a file look
    empty. So the file has its number of rows in a second place."""
    with reading(context, path, expected.checksum, expected.log) as file:
        if columns is None:
            decoded = {field.name for field in DECODED_FIELDS}
            columns = [name for name in file.schema.names if name not in decoded]
        demand_rows(file, path, _row_count(file))
        groups = [
            group
            for group in range(file.num_row_groups)
            if keys is None or _may_have(file, group, (b"", *keys))
            if span is None or _may_overlap(file, group, span)
        ]
        count = _row_count(file) - sum(file.metadata.row_group(group).num_rows for group in groups)
        read = _every(file, groups, columns, rows_max)
        if by_position:
            read = sorted_by_position(read)
        for batch in read:
            count += len(batch)
            yield batch
        demand_rows(file, path, count)
    if expected.records and count != expected.records:
        difference = f"this Parquet file has {count} rows, but the manifest says {expected.records}"
        raise CorruptLog(path, 0, difference, "restore it from a copy")


def group_keys(context: Context, path: str, log: str = "") -> list[tuple[bytes, float]]:
    """The first key of each row group, and which fraction of the file's bytes it has; without row
    groups whose keys are unknown. Reads only the footer. Raises `NotFound` and `CorruptLog`."""
    with reading(context, path, 0, log) as file:
        groups = range(file.num_row_groups)
        sizes = [file.metadata.row_group(group).total_byte_size for group in groups]
        ranges = [_key_range(file, group) for group in groups]
    return [
        (keys[0], size / sum(sizes))
        for keys, size in zip(ranges, sizes, strict=True)
        if keys is not None
    ]


def groups_of(
    context: Context, path: str, span: tuple[bytes, bytes | None], log: str = ""
) -> list[int]:
    """The numbers of the row groups that may have a key of a range, or a clear. Reads only the
    footer. Raises `NotFound` and `CorruptLog`."""
    with reading(context, path, 0, log) as file:
        return [group for group in range(file.num_row_groups) if _may_overlap(file, group, span)]


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
    bounds = _key_range(file, group)
    return bounds is None or any(bounds[0] <= key <= bounds[1] for key in keys)


def _may_overlap(file: Any, group: int, span: tuple[bytes, bytes | None]) -> bool:
    """Whether a row group may have a key of a range, or a clear, whose key is empty."""
    bounds, (lower, upper) = _key_range(file, group), span
    if bounds is None or not bounds[0]:
        return True
    return bounds[1] >= lower and (upper is None or bounds[0] < upper)


def _key_range(file: Any, group: int) -> tuple[bytes, bytes] | None:
    """The first and the last key of a row group. None: unknown. Long keys have no statistics."""
    column = file.schema.names.index("key")
    statistics = file.metadata.row_group(group).column(column).statistics
    return (
        None
        if statistics is None or not statistics.has_min_max
        else (statistics.min, statistics.max)
    )


def _row_count(file: Any) -> int:
    """The number of rows of a `pyarrow.parquet.ParquetFile`, by its index."""
    groups = range(file.num_row_groups)
    return sum(file.metadata.row_group(group).num_rows for group in groups)


def group_batches(
    context: Context,
    path: str,
    columns: list[str],
    groups: Sequence[int] | None = None,
    expected: Expected = UNKNOWN,
) -> Iterator[tuple[int, int, Any]]:
    """The record batches of some row groups, which increase, or of all: each with the number of its
    row group, and that of its first row in the file. A caller that reads only some groups must not
    expect a checksum. Raises `NotFound` and `CorruptLog`."""
    with reading(context, path, expected.checksum, expected.log) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        demand_rows(file, path, sum(sizes))
        records = expected.records or sum(sizes)
        if sum(sizes) != records or (groups and groups[-1] >= len(sizes)):
            difference = (
                f"this Parquet file has {sum(sizes)} rows in {len(sizes)} row groups, but should"
            )
            raise CorruptLog(path, 0, f"{difference} have {records} rows", "restore it from a copy")
        for group in range(len(sizes)) if groups is None else groups:
            first = sum(sizes[:group])
            count = _batch_rows(file.metadata.row_group(group), columns, GROUP_ROWS_MAX)
            for batch in file.iter_batches(count, row_groups=[group], columns=columns):
                validate(batch)
                yield group, first, batch
                first += len(batch)
            if first != sum(sizes[: group + 1]):
                difference = (
                    f"row group {group} of this Parquet file does not have the {sizes[group]} rows"
                )
                raise CorruptLog(path, 0, f"{difference} of its footer", "restore it from a copy")


def rows_at(
    context: Context, path: str, rows: Any, columns: list[str], *, log: str = ""
) -> Iterator[Any]:
    """Only some rows of a file, in batches: those with the numbers `rows`, an Arrow array of
    integers that increase. Row groups without such a row are not read. The whole file must have
    been compared with its checksum before: this is not repeated. Raises `NotFound`
    and `CorruptLog`."""
    with reading(context, path, 0, log) as file:
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
                if start == len(rows):
                    return  # the rest of the row group is not decoded
        if start < len(rows):
            difference = f"this Parquet file has {first} rows now, but had more before"
            raise CorruptLog(path, 0, difference, "restore it from a copy")


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


def demand_readable(context: Context, path: str, log: str = "") -> None:
    """Raises the errors of a file whose footer cannot be read, or cannot be read with these
    keys."""
    with reading(context, path, 0, log):
        pass


@contextmanager
def reading(context: Context, path: str, checksum: int, log: str) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` of ours. What pyarrow raises for damage while it is open
    becomes `CorruptLog`; also raises `NotFound`, and the errors of a missing key."""
    with open_checked(context.store, path, checksum) as source:
        try:
            file = open_parquet(source, path, context.keys, log)
            if file.schema not in stored_schemas():
                raise CorruptLog(
                    path,
                    0,
                    f"this Parquet file has columns {file.schema.names}, or types, that are "
                    "not those of an imap-wal file",
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


def validate(batch: Any) -> None:
    """Raise an ArrowException for a page that was read with another column's dictionary."""
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)
