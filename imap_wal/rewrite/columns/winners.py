"""The whole rows of the winners, in key order, in bounded memory.

Sources are read one after the other, and only where they have a winner. What was read is sorted by
rank, the place of a row in key order, in runs of bounded size, by another thread; runs are merged
window by window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imap_wal.parquet.columns import SNAPSHOT_SCHEMA
from imap_wal.parquet.scratch import Scratch
from imap_wal.retention.overlap import Background
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

RANKS = [
    pa.field("rank", pa.int64()),
    pa.field("claimed", pa.bool_()),
    pa.field("dropped", pa.bool_()),
    pa.field("late", pa.bool_()),
]
RANKED_SCHEMA = pa.schema([*SNAPSHOT_SCHEMA, *RANKS])
"""`claimed`: several rows have this key, the winner first. `dropped`: the rule drops it, unless its
key is in conflict. `late`: see `imap_wal.rewrite.tally.Tally.is_late`."""
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024
RUNS = 64
"""How many runs can be merged within `memory_bytes`: one page of each is in memory."""


class RowSorter:
    """Takes rows of one map, with `RANKED_SCHEMA`, in any order, and returns them by rank. Every
    rank exists once. Half of `memory_bytes` waits while another thread sorts the rest."""

    def __init__(self, memory_bytes: int, folder: Path | None) -> None:
        self._limit = memory_bytes // 2
        self._page_bytes = min(max(memory_bytes // RUNS, PAGE_BYTES_MIN), PAGE_BYTES_MAX)
        self._scratch = Scratch(RANKED_SCHEMA, 0, folder)
        self._background = Background()
        self._held: list[Any] = []
        self._size = 0
        self._runs = 0

    def add(self, batch: Any) -> None:
        if self._held and self._size + batch.nbytes > self._limit:
            self._end_run()  # before: a column of a run must be smaller than 2 GiB
        self._held.append(batch)
        self._size += batch.nbytes

    def pages(self) -> Iterator[Any]:
        """All rows by rank, once, in batches."""
        if not self._runs:
            held, self._held = self._held, []
            yield from self._sorted(held, self._size)
            return
        self._end_run()
        self._background.wait()
        for table in merged([self._scratch.taken(run) for run in self._scratch.tags()]):
            yield from table.combine_chunks().to_batches()

    def close(self) -> None:
        self._background.close()
        self._held.clear()
        self._scratch.close()

    def _end_run(self) -> None:
        run, held, size = self._runs, self._held, self._size
        self._runs, self._held, self._size = run + 1, [], 0
        self._background.run(lambda: self._store(run, held, size))

    def _store(self, run: int, held: list[Any], size: int) -> None:
        for page in self._sorted(held, size):
            self._scratch.add(run, page)

    def _sorted(self, held: list[Any], size: int) -> Iterator[Any]:
        """The rows of `held`, which becomes empty, by rank, in pages."""
        if not held:
            return
        # Joined once: otherwise each `take` of a page joins all.
        table = pa.Table.from_batches(held, RANKED_SCHEMA).combine_chunks()
        held.clear()
        order = pc.sort_indices(table["rank"])
        count = max(1, table.num_rows * self._page_bytes // max(1, size))
        for start in range(0, table.num_rows, count):
            page = table.take(order.slice(start, count))
            for batch in page.combine_chunks().to_batches():
                yield from _cut(batch, 2 * self._page_bytes)


def _cut(batch: Any, bytes_max: int) -> Iterator[Any]:
    """A batch in pieces of at most `bytes_max` bytes, or of one row."""
    if batch.nbytes <= bytes_max or len(batch) == 1:
        yield batch
        return
    middle = len(batch) // 2
    yield from _cut(batch.slice(0, middle), bytes_max)
    yield from _cut(batch.slice(middle), bytes_max)


def merged(runs: list[Iterator[Any]]) -> Iterator[Any]:
    """The rows of sorted runs, sorted by rank, as tables."""
    windows: list[tuple[Any, Iterator[Any]]] = []
    for run in runs:
        first = next(run, None)
        if first is not None:
            windows.append((first, run))
    while windows:
        # Below the first end of a window no row can come from elsewhere.
        bound = min(batch.column("rank")[-1].as_py() for batch, _ in windows)
        found, left = [], []
        for batch, run in windows:
            stop = bisect_right(batch.column("rank"), bound, key=_number)
            if stop:
                found.append(batch.slice(0, stop))
            rest = batch.slice(stop) if stop < len(batch) else next(run, None)
            if rest is not None:
                left.append((rest, run))
        windows = left
        table = pa.Table.from_batches(found, RANKED_SCHEMA)
        yield table.take(pc.sort_indices(table["rank"])) if len(found) > 1 else table


def _number(scalar: Any) -> int:
    return int(scalar.as_py())
