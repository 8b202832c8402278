"""The newest change of every key, by columns: keys and orders, without values, in bounded memory.

    add ─▶ batches of a map ─▶ `contenders`: of each key, the changes that may still win
             │ more than half of the limit are left          (another thread does this)
             ▼
           ranges of keys on scratch ─▶ a range is cut again while it is larger than the limit

A row says where the whole change is: the number of its source, and its row there. Which changes are
contenders, and why several of one key can be, is in `imap_wal.read.newest.rivals`; this module has
the same rule for columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from imap_wal.entry import SHARED_SESSIONS
from imap_wal.parquet.scratch import Scratch
from imap_wal.retention.overlap import Background
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

KEY_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("incarnation", pa.int64()),
        pa.field("partition_version", pa.int64()),
        pa.field("session", pa.int64()),
        pa.field("request", pa.int64()),
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
PAIR = ("incarnation", "partition_version")
COUNTERS = ("session", "request")
RANGES = 16
"""A map or a range that does not fit in memory is cut into this many ranges of keys."""
PAGE_ROWS = 10_000
BITS = 62
"""How many bits of a 64-bit integer are used."""

Tag: TypeAlias = tuple[Any, ...]


class NewestKeys:
    """Not thread-safe. `memory_bytes`: about how much the rows of all maps may take; working on
    them takes three times as much. Half of it waits while another thread works on the rest."""

    def __init__(self, memory_bytes: int, folder: Path | None = None) -> None:
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
                yield contenders(pa.Table.from_batches(held, KEY_SCHEMA))
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
            table = contenders(pa.Table.from_batches(batches, KEY_SCHEMA))
            batches[:] = table.combine_chunks().to_batches()
            size += table.nbytes
        if size > self._limit // 2:
            while held:
                self._spill(*held.popitem())
        self._left = held

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
            table = contenders(pa.Table.from_batches(pieces, KEY_SCHEMA)).combine_chunks()
            pieces, size = table.to_batches(), table.nbytes
            borders = borders_of(sorted_by_key(table)) if size > self._limit // 2 else []
            if borders:
                self._next += 1
                yield from self._cut((*tag, self._next), borders, pieces, batches)
                return
        if pieces:
            yield contenders(pa.Table.from_batches(pieces, KEY_SCHEMA))

    def _cut(
        self, tag: Tag, borders: list[bytes], pieces: list[Any], rest: Iterator[Any]
    ) -> Iterator[Any]:
        """A range that is larger than the limit, as smaller ones."""
        for some in (pieces, *([batch] for batch in rest)):
            table = sorted_by_key(pa.Table.from_batches(some, KEY_SCHEMA))
            self._distribute(table, borders, lambda place: (*tag, place))
        for place in range(len(borders) + 1):
            yield from self._range((*tag, place))


def contenders(table: Any) -> Any:
    """Of each key, the changes with the greatest (incarnation, partition version): of each writer
    the newest one, and of equal ones the first. `late` is true for all remaining changes of a key
    if it was true for one of its changes. Values are not here, so copies of a change count as
    equal."""
    keys = _encoded(table["key"])
    ids, count = keys.indices, len(keys.dictionary)
    if count == table.num_rows:
        return table
    late = table["late"].combine_chunks()
    late_of = None
    if late.true_count:
        late_of = _by_group(ids, late, "any")
    order, counter_bits = packed(table)
    order_of = _by_group(ids, order, "max").take(ids)
    newest = pc.equal(order, order_of)
    pairs, pair_of = (pc.shift_right(each, counter_bits) for each in (order, order_of))
    rivals = _rivals(table, ids, newest, pc.equal(pairs, pair_of))
    if rivals is None:
        kept = _first_of_each(ids, newest) if newest.true_count > count else newest
        found, found_ids = table.filter(kept), ids.filter(kept)
    else:
        alone = pc.and_(newest, pc.invert(rivals))
        alone = _first_of_each(ids, alone)
        claimed = _newest_of_each_writer(table.filter(rivals), ids.filter(rivals))
        found = pa.concat_tables([table.filter(alone), claimed[0]])
        found_ids = pa.concat_arrays([ids.filter(alone), claimed[1]])
    if late_of is not None:
        place = found.schema.get_field_index("late")
        found = found.set_column(place, KEY_SCHEMA.field("late"), late_of.take(found_ids))
    return found


def _rivals(table: Any, ids: Any, newest: Any, greatest: Any) -> Any:
    """Which rows are of keys that several writers claim with the greatest pair; None: there are
    none. `newest`, `greatest`: which rows have the greatest order, and the greatest pair."""
    nodes = _writers(table)
    low_high = pc.min_max(nodes)
    if low_high["min"] == low_high["max"]:
        return None
    node_of = _by_group(ids.filter(newest), nodes.filter(newest), "min").take(ids)
    found = pc.and_(greatest, pc.not_equal(nodes, node_of))
    if not found.true_count:
        return None
    return pc.is_in(ids, value_set=pc.unique(ids.filter(found)))


def _writers(table: Any) -> Any:
    """A number of each row's writer, below 2^31: of its node, or above those of its shared
    session."""
    nodes = table["node"].combine_chunks().cast(pa.int64())
    sessions = table["session"].combine_chunks()
    shared = pc.greater_equal(sessions, SHARED_SESSIONS)
    if not shared.true_count:
        return nodes
    numbers = pc.add(_ranks(sessions)[0], pc.add(pc.max(nodes), 1))
    return pc.if_else(shared, numbers, nodes)


def _newest_of_each_writer(table: Any, ids: Any) -> tuple[Any, Any]:
    pairs, _ = packed(table, PAIR, ())
    kept = pc.equal(pairs, _by_group(ids, pairs, "max", dense=False).take(_dense(ids)))
    table, ids = table.filter(kept), ids.filter(kept)
    both = pc.add(pc.shift_left(ids.cast(pa.int64()), 31), _writers(table))
    owners = both.dictionary_encode().indices
    order, _ = packed(table, (), COUNTERS)
    newest = pc.equal(order, _by_group(owners, order, "max").take(owners))
    kept = _first_of_each(owners, newest)
    return table.filter(kept), ids.filter(kept)


def packed(
    table: Any, high: Sequence[str] = PAIR, low: Sequence[str] = COUNTERS
) -> tuple[Any, int]:
    """An integer for each row that sorts as the columns `high` and then `low` do, and how many of
    its bits come from `low`."""
    upper, upper_bits = _joined([table[name].combine_chunks() for name in high])
    lower, lower_bits = _joined([table[name].combine_chunks() for name in low])
    if upper is None or lower is None:
        found = lower if upper is None else upper
        assert found is not None
        return found, lower_bits
    if upper_bits + lower_bits > BITS:
        (upper, _), (lower, lower_bits) = _ranks(upper), _ranks(lower)
    return pc.bit_wise_or(pc.shift_left(upper, lower_bits), lower), lower_bits


def _joined(columns: Sequence[Any]) -> tuple[Any, int]:
    """Up to two columns as one column of integers from 0 on, and its size in bits. None without a
    column."""
    ranges = [pc.min_max(column) for column in columns]
    widths = [(each["max"].as_py() - each["min"].as_py()).bit_length() for each in ranges]
    found: Any = None
    bits = 0
    for column, each, width in zip(columns, ranges, widths, strict=True):
        if sum(widths) > BITS:
            column, width = _ranks(column)  # noqa: PLW2901
        else:
            column = pc.subtract(column, each["min"])  # noqa: PLW2901
        found = column if found is None else pc.bit_wise_or(pc.shift_left(found, width), column)
        bits += width
    return found, bits


def _ranks(column: Any) -> tuple[Any, int]:
    """Small integers from 0 on that sort as the column does, equal for equal values; and their size
    in bits."""
    ranks = pc.subtract(pc.rank(column, tiebreaker="dense").cast(pa.int64()), 1)
    return ranks, int(pc.max(ranks).as_py() or 0).bit_length()


def _by_group(groups: Any, values: Any, how: str, *, dense: bool = True) -> Any:
    """The maximum (or the function `how`) of each group, at the index that is the group's number.
    All numbers from 0 on must exist, unless `dense` is false: then the results are in the order of
    the numbers."""
    table = pa.table({"group": groups, "value": values})
    found = table.group_by("group", use_threads=False).aggregate([("value", how)])
    order = pc.sort_indices(found["group"])
    return found[f"value_{how}"].combine_chunks().take(order)


def _dense(groups: Any) -> Any:
    """The rank of each group's number among all that exist."""
    return pc.subtract(pc.rank(groups, tiebreaker="dense").cast(pa.int64()), 1)


def _first_of_each(groups: Any, mask: Any) -> Any:
    """Of the rows of `mask`, the first one of each group, as a mask."""
    places = pc.indices_nonzero(mask)
    table = pa.table({"group": groups.take(places), "place": places})
    found = table.group_by("group", use_threads=False).aggregate([("place", "min")])
    if found.num_rows == len(places):
        return mask
    everything = pc.indices_nonzero(pc.is_valid(groups))
    return pc.is_in(everything, value_set=found["place_min"].combine_chunks())


def sorted_by_key(table: Any) -> Any:
    return table.take(pc.sort_indices(table["key"]))


def borders_of(table: Any) -> list[bytes]:
    """Keys that cut a sorted table into `RANGES` parts; fewer if it has few keys."""
    keys = table["key"]
    places = [len(keys) * part // RANGES for part in range(1, RANGES)]
    lowest = keys[0].as_py()
    return sorted({keys[place].as_py() for place in places} - {lowest})


def _encoded(column: Any) -> Any:
    """A column as one array with a dictionary."""
    return column.combine_chunks().dictionary_encode()


def _bytes(scalar: Any) -> bytes:
    return bytes(scalar.as_py())
