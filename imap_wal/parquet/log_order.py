"""Restores the order of the log: archives are sorted by key
(docs/decisions/rewrites.md)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from imap_wal.errors import StorageUnavailable
from imap_wal.parquet.columns import POSITION_COLUMNS, plain
from imap_wal.parquet.scratch import Scratch
from imap_wal.rules.arrow import pc
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa

PAGE_BYTES = 1024 * 1024
SORTED_BYTES = 4 * 1024 * 1024
"""At most this many bytes of the sorted rows stay in memory; the rest is in a file."""


def sorted_by_position(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of one archive in the order of the log. One archive is in memory while it is sorted;
    then its rows wait in a file without a name, so that many archives can be read at once. Raises
    `StorageUnavailable` if there is no room for it."""
    held = [plain(batch) for batch in batches]
    if not held:
        return
    table = pa.Table.from_batches(held).combine_chunks()
    held.clear()
    order = order_by(table, POSITION_COLUMNS)
    count = max(1, table.num_rows * PAGE_BYTES // max(1, table.nbytes))
    with closing(Scratch(table.schema, SORTED_BYTES)) as scratch:
        with _no_room():
            for start in range(0, table.num_rows, count):
                for batch in table.take(order.slice(start, count)).combine_chunks().to_batches():
                    scratch.add("", batch)
        del table, order
        pages = scratch.taken("")
        while True:
            with _no_room():
                page = next(pages, None)
            if page is None:
                return
            yield page


@contextmanager
def _no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(
            f"reading an archive needs space for a copy in {tempfile.gettempdir()}: {error}; "
            "free space there"
        ) from error


def order_by(table: Any, columns: Sequence[str]) -> Any:
    """The numbers of the rows, sorted by these columns."""
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
