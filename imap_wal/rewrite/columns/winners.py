"""The whole rows of the winners, in key order, in bounded memory.

Sources are read one after the other, and only where they have a winner. What was read is sorted by
rank, the place of a row in key order, in runs of bounded size, by another thread. At most `RUNS`
runs are merged at a time, page by page; if there are more, some are first merged into a longer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
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
RUNS = 128
"""How many runs are merged at a time: a page of each is in memory, together `memory_bytes`."""


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
        self._runs: deque[_Run] = deque()
        self._next = 0

    def add(self, batch: Any) -> None:
        if self._held and self._size + batch.nbytes > self._limit:
            self._end_run()  # before: a column of a run must be smaller than 2 GiB
        self._held.append(batch)
        self._size += batch.nbytes

    def pages(self) -> Iterator[Any]:
        """All rows by rank, once, in batches."""
        if not self._runs:
            held, self._held = self._held, []
            for batch in self._sorted(held, self._size):
                yield from _cut(batch, 2 * self._page_bytes)
            return
        self._end_run()
        self._background.wait()
        while len(self._runs) > RUNS:
            some = [self._runs.popleft() for _ in range(min(RUNS, len(self._runs) - RUNS + 1))]
            self._store(self._new_run(), (batch for page in merged(some) for batch in page))
        for batches in merged(self._runs):
            yield from batches

    def close(self) -> None:
        self._background.close()
        self._held.clear()
        self._scratch.close()

    def _end_run(self) -> None:
        held, size = self._held, self._size
        self._held, self._size = [], 0
        run = self._new_run()
        self._background.run(lambda: self._store(run, self._sorted(held, size)))

    def _new_run(self) -> _Run:
        """The shortest runs are the first ones."""
        run = _Run(self._scratch, self._next)
        self._next += 1
        self._runs.append(run)
        return run

    def _store(self, run: _Run, batches: Iterable[Any]) -> None:
        for batch in batches:
            for page in _cut(batch, 2 * self._page_bytes):
                run.add(page)

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
            yield from page.combine_chunks().to_batches()


def _cut(batch: Any, bytes_max: int) -> Iterator[Any]:
    """A batch in pieces of at most `bytes_max` bytes, or of one row."""
    if batch.nbytes <= bytes_max or len(batch) == 1:
        yield batch
        return
    middle = len(batch) // 2
    yield from _cut(batch.slice(0, middle), bytes_max)
    yield from _cut(batch.slice(middle), bytes_max)


class _Run:
    """Sorted rows on scratch, in pages. A page is loaded when one of its rows is wanted: with large
    values, each row is a page."""

    def __init__(self, scratch: Scratch, tag: int) -> None:
        self._scratch, self._tag = scratch, tag
        self._spans: deque[tuple[int, int]] = deque()
        """The first and the last rank of each page that was not taken."""
        self._pages: Iterator[Any] | None = None
        self._page: Any = None
        """The rest of the page that is being taken."""
        self._ranks: Any = None

    def add(self, page: Any) -> None:
        ranks = page.column("rank")
        self._spans.append((ranks[0].as_py(), ranks[-1].as_py()))
        self._scratch.add(self._tag, page)

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last rank of the page that comes next; None: there is none."""
        return self._spans[0] if self._spans else None

    def take(self, bound: int) -> Any:
        """The rows of the next page up to this rank, at least one."""
        if self._page is None:
            if self._pages is None:
                self._pages = self._scratch.taken(self._tag)
            self._page = next(self._pages)
            self._ranks = self._page.column("rank").to_numpy()
        page, ranks = self._page, self._ranks
        stop = int(ranks.searchsorted(bound, "right"))
        if stop < len(page):
            self._page, self._ranks = page.slice(stop), ranks[stop:]
            self._spans[0] = int(ranks[stop]), self._spans[0][1]
        else:
            self._page = self._ranks = None
            self._spans.popleft()
        return page.slice(0, stop)


def merged(runs: Iterable[_Run]) -> Iterator[list[Any]]:
    """The rows of runs, by rank, as lists of batches."""
    left = [(span, run) for run in runs if (span := run.span)]
    while left:
        # Up to the first end of a page, no row can come from elsewhere.
        bound = min(last for (_, last), _ in left)
        pages = [run.take(bound) for (first, _), run in left if first <= bound]
        left = [(span, run) for _, run in left if (span := run.span)]
        table = pa.Table.from_batches(pages, RANKED_SCHEMA)
        pages.clear()
        if table.column("rank").num_chunks > 1:
            table = table.take(pc.sort_indices(table["rank"])).combine_chunks()
        yield table.to_batches()
