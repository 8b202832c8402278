"""The newest change of every key, by columns: keys and orders, without values, in bounded memory.

    add ─▶ batches of a map ─▶ `contenders`: of each key, the changes that may still win
             │ more than half of the limit are left          (another thread does this)
             ▼
           ranges of keys on scratch ─▶ a range is cut again while it is larger than the limit

A row says where the whole change is: the number of its source, and its row there. Which changes are
contenders is in `imap_wal.rules.newer`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from imap_wal.entry import ORDER_FIELDS
from imap_wal.parquet.scratch import Scratch
from imap_wal.retention.overlap import Background
from imap_wal.rules.newer import contenders
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

KEY_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        *(pa.field(name, pa.int64()) for name in ORDER_FIELDS),
        pa.field("node", pa.int32()),
        pa.field("deleted", pa.bool_()),
        pa.field("expires_at_ms", pa.int64()),
        pa.field("late", pa.bool_()),
        pa.field("source", pa.int32()),
        pa.field("row", pa.int64()),
    ]
)
"""`node`: its number. `late`: a tombstone or expiring change that was appended after the first look
at the ends of the logs (`imap_wal.rewrite.plan`)."""
RANGES = 16
"""A map or a range that does not fit in memory is cut into this many ranges of keys."""
PAGE_ROWS = 10_000
Tag: TypeAlias = tuple[Any, ...]


class NewestKeys:
    """Not thread-safe. `memory_bytes`: about how much the rows of all maps may take; working on
    them takes three times as much. Half of it waits while another thread works on the rest."""

    def __init__(self, memory_bytes: int, folder: Path | None = None) -> None:
        self.nodes: list[str] = []
        """The names of the nodes, by number."""
        self._limit = memory_bytes
        self._scratch = Scratch(KEY_SCHEMA, 0, folder)
        self._background = Background()
        self._held: dict[str, list[Any]] = {}
        self._size = 0
        """The bytes of the rows that were added since the other thread got all."""
        self._left: dict[str, list[Any]] = {}
        """The rows that the other thread has left; they come before those of `_held`."""
        self._borders: dict[str, list[bytes]] = {}
        """Map → the lower borders of its ranges on scratch, without the first."""
        self._next = 0

    def add(self, name: str, batch: Any) -> None:
        """Rows of one map, with `KEY_SCHEMA`."""
        if not len(batch):
            return
        self._held.setdefault(name, []).append(batch)
        self._size += batch.nbytes
        if self._size > self._limit // 2:
            held, self._size = self._take(), 0
            self._background.run(lambda: self._reduce(held))

    def maps(self) -> list[str]:
        self._held = self._take()
        return sorted({*self._held, *self._borders})

    def keys(self, name: str) -> Iterator[list[bytes]]:
        """The keys of a map, in pages. A key may appear more than once."""
        self._held = self._take()
        for batch in self._batches(name):
            for start in range(0, len(batch), PAGE_ROWS):
                yield batch.column("key").slice(start, PAGE_ROWS).to_pylist()

    def ranges(self, name: str) -> Iterator[Any]:
        """The contenders of a map, as tables of ranges of keys: each key is in one table, and the
        keys of a table are above those of the tables before it. Within a table they are in no
        order."""
        self._held = self._take()
        borders = self._borders.get(name)
        if borders is None:
            held = self._held.get(name)
            if held:
                yield self._contenders(held)
            return
        if held := self._held.pop(name, None):
            self._spill(name, held)
        for place in range(len(borders) + 1):
            yield from self._range((name, place))

    def close(self) -> None:
        self._background.close()
        self._held.clear()
        self._left.clear()
        self._scratch.close()

    def _batches(self, name: str) -> Iterator[Any]:
        for place in range(len(self._borders.get(name, ())) + 1):
            yield from self._scratch.read((name, place))
        yield from self._held.get(name, ())

    def _take(self) -> dict[str, list[Any]]:
        """All rows that are in memory, when the other thread has no more work."""
        self._background.wait()
        if not self._left:  # soon, because it is asked for each map
            held, self._held = self._held, {}
            return held
        held, self._left = self._left, {}
        for name, batches in self._held.items():
            held.setdefault(name, []).extend(batches)
        self._held = {}
        return held

    def _reduce(self, held: dict[str, list[Any]]) -> None:
        """Drop the rows that cannot win. If that is not enough, move all rows to scratch. The other
        thread does this."""
        size = 0
        for batches in held.values():
            table = self._contenders(batches)
            batches[:] = table.combine_chunks().to_batches()
            size += table.nbytes
        if size > self._limit // 2:
            while held:
                self._spill(*held.popitem())
        self._left = held

    def _contenders(self, batches: list[Any]) -> Any:
        return contenders(pa.Table.from_batches(batches, KEY_SCHEMA), self.nodes.copy())

    def _spill(self, name: str, held: list[Any]) -> None:
        table = sorted_by_key(pa.Table.from_batches(held, KEY_SCHEMA))
        borders = self._borders.get(name)
        if borders is None:
            borders = self._borders[name] = borders_of(table)
        self._distribute(table, borders, lambda place: (name, place))

    def _distribute(self, table: Any, borders: Sequence[bytes], tag: Callable[[int], Tag]) -> None:
        """`table` is sorted by key."""
        start = 0
        for place, border in enumerate((*borders, None)):
            stop = table.num_rows
            if border is not None:
                stop = bisect_left(table["key"], border, start, key=_bytes)
            for batch in table.slice(start, stop - start).combine_chunks().to_batches():
                self._scratch.add(tag(place), batch)
            start = stop

    def _range(self, tag: Tag) -> Iterator[Any]:
        pieces: list[Any] = []
        size = 0
        batches = self._scratch.taken(tag)
        for batch in batches:
            pieces.append(batch)
            size += batch.nbytes
            if size <= self._limit:
                continue
            table = self._contenders(pieces).combine_chunks()
            pieces, size = table.to_batches(), table.nbytes
            borders = borders_of(sorted_by_key(table)) if size > self._limit // 2 else []
            if borders:
                self._next += 1
                yield from self._cut((*tag, self._next), borders, pieces, batches)
                return
        if pieces:
            yield self._contenders(pieces)

    def _cut(
        self, tag: Tag, borders: list[bytes], pieces: list[Any], rest: Iterator[Any]
    ) -> Iterator[Any]:
        """A range that is larger than the limit, as smaller ones."""
        for some in (pieces, *([batch] for batch in rest)):
            table = sorted_by_key(pa.Table.from_batches(some, KEY_SCHEMA))
            self._distribute(table, borders, lambda place: (*tag, place))
        for place in range(len(borders) + 1):
            yield from self._range((*tag, place))


def sorted_by_key(table: Any) -> Any:
    return table.take(pc.sort_indices(table["key"]))


def borders_of(table: Any) -> list[bytes]:
    """Keys that cut a sorted table into `RANGES` parts; fewer if it has few keys."""
    keys = table["key"]
    places = [len(keys) * part // RANGES for part in range(1, RANGES)]
    lowest = keys[0].as_py()
    return sorted({keys[place].as_py() for place in places} - {lowest})


def _bytes(scalar: Any) -> bytes:
    return bytes(scalar.as_py())
