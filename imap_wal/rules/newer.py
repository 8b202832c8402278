"""Which of two changes of a key is newer, and what happens when two nodes claim one change.

    pair        (incarnation, partition version): the change with the greater one is newer
    writer      a node; of a change with a shared session, that session, in the logs of any nodes
    contenders  the changes with the greatest pair: of each writer the one with the greatest order.
                Copies of a change, which have one order, are one contender
    winner      a value before a tombstone, then the node whose name sorts first, then the lowest
                order: a node may have a change with a shared session and one without

Neither clocks nor the order of reading decide: a merge keeps all contenders of a key together, so
every merge of the same changes has the same winner. Two changes with one pair exist after a split
network, or after the folder of a node was copied. See
decision 24 in docs/decisions/order.md, and decision 56 for shared sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    ORDER,
    ORDER_FIELDS,
    SHARED_SESSIONS,
    VALUE,
    VALUE_CLASS,
    Order,
    Row,
    is_shared,
)
from imap_wal.rules.arrow import pa, pc

Claim: TypeAlias = tuple[Row, str]
"""A row, and its node."""
PAIR, COUNTERS = ORDER_FIELDS[:2], ORDER_FIELDS[2:]
BITS = 62
"""How many bits of a 64-bit integer are used."""

T = TypeVar("T")


def content_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """What a change says about its key; equal for copies of one change."""
    return row[VALUE], row[VALUE_CLASS], row[DELETED], row[EXPIRES_AT_MS]


def rank(row: Row, node: str) -> tuple[Order, str]:
    """The newest of several clears has the greatest rank."""
    return row[ORDER], node


@dataclass(frozen=True, slots=True)
class Contest(Generic[T]):
    """Decides between changes of one key, which may be rows or anything else: these functions read
    a change."""

    order: Callable[[T], Order]
    node: Callable[[T], str]
    deleted: Callable[[T], bool]
    content: Callable[[T], Any]

    def replaces(self, new: T, former: T) -> bool | None:
        """Whether `new` counts instead of `former`. False: `former` does. None: both are
        contenders."""
        order, other = self.order(new), self.order(former)
        if order[:2] != other[:2]:
            return order > other
        node, owner = self.node(new), self.node(former)
        shared = is_shared(order) or is_shared(other)
        one_writer = order[2] == other[2] if shared else node == owner
        if not one_writer:
            return None
        if order != other:
            return order > other
        if node == owner:
            return False
        return node < owner if self.content(new) == self.content(former) else None

    def add(self, contenders: Sequence[T], new: T) -> list[T]:
        """The contenders after one more change; the winner first."""
        rivals = []
        for former in contenders:
            replaces = self.replaces(new, former)
            if replaces is None:
                rivals.append(former)
            elif not replaces:
                return list(contenders)
        return sorted([*rivals, new], key=self._rank)

    def _rank(self, change: T) -> tuple[bool, str, Order]:
        # A fixed rule: without one, every reader failed for the whole map (decision 24).
        return self.deleted(change), self.node(change), self.order(change)

    def offer(
        self, newest: dict[bytes, T], rivals: dict[bytes, list[T]], key: bytes, new: T
    ) -> None:
        """Add a change of a key. `newest`: key → winner; `rivals`: key → other contenders."""
        former = newest.get(key)
        if former is None:
            newest[key] = new
            return
        order, other = self.order(new), self.order(former)
        # The common case, as `replaces` decides it: a restore waits for this.
        if order[1] != other[1] or order[0] != other[0]:
            if order > other:
                newest[key] = new
                if rivals:
                    rivals.pop(key, None)
            return
        replaces = None if key in rivals else self.replaces(new, former)
        if replaces:
            newest[key] = new
        elif replaces is None:
            newest[key], *others = self.add([former, *rivals.pop(key, ())], new)
            if others:
                rivals[key] = others


def contenders(table: Any, nodes: Sequence[str]) -> Any:
    """The contenders of each key. `nodes`: their names by number. `late` is true for all contenders
    of a key if it was true for one of its changes. Values are not here, so copies of a change count
    as equal."""
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
    pairs, pair_of = (pc.shift_right(number, counter_bits) for number in (order, order_of))
    rivals = _rivals(table, ids, newest, pc.equal(pairs, pair_of))
    if rivals is None:
        mask = _one_of_each(table, nodes, ids, newest) if newest.true_count > count else newest
        left, left_ids = table.filter(mask), ids.filter(mask)
    else:
        alone = pc.and_(newest, pc.invert(rivals))
        alone = _one_of_each(table, nodes, ids, alone)
        claimed = _newest_of_each_writer(table.filter(rivals), nodes, ids.filter(rivals))
        left = pa.concat_tables([table.filter(alone), claimed[0]])
        left_ids = pa.concat_arrays([ids.filter(alone), claimed[1]])
    if late_of is not None:
        place = left.schema.get_field_index("late")
        left = left.set_column(place, left.schema.field(place), late_of.take(left_ids))
    return left


def _rivals(table: Any, ids: Any, newest: Any, greatest: Any) -> Any:
    """Which rows are of keys that several writers claim with the greatest pair; None: there are
    none. `newest`, `greatest`: which rows have the greatest order, and the greatest pair."""
    nodes = _writers(table)
    low_high = pc.min_max(nodes)
    if low_high["min"] == low_high["max"]:
        return None
    node_of = _by_group(ids.filter(newest), nodes.filter(newest), "min").take(ids)
    others = pc.and_(greatest, pc.not_equal(nodes, node_of))
    if not others.true_count:
        return None
    return pc.is_in(ids, value_set=pc.unique(ids.filter(others)))


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


def _newest_of_each_writer(table: Any, nodes: Sequence[str], ids: Any) -> tuple[Any, Any]:
    pairs, _ = packed(table, PAIR, ())
    mask = pc.equal(pairs, _by_group(ids, pairs, "max", dense=False).take(_dense(ids)))
    table, ids = table.filter(mask), ids.filter(mask)
    both = pc.add(pc.shift_left(ids.cast(pa.int64()), 31), _writers(table))
    owners = both.dictionary_encode().indices
    order, _ = packed(table, (), COUNTERS)
    newest = pc.equal(order, _by_group(owners, order, "max").take(owners))
    mask = _one_of_each(table, nodes, owners, newest)
    return table.filter(mask), ids.filter(mask)


def packed(
    table: Any, high: Sequence[str] = PAIR, low: Sequence[str] = COUNTERS
) -> tuple[Any, int]:
    """An integer for each row that sorts as the columns `high` and then `low` do, and how many of
    its bits come from `low`."""
    upper, upper_bits = _joined([table[name].combine_chunks() for name in high])
    lower, lower_bits = _joined([table[name].combine_chunks() for name in low])
    if upper is None or lower is None:
        single = lower if upper is None else upper
        assert single is not None
        return single, lower_bits
    if upper_bits + lower_bits > BITS:
        (upper, _), (lower, lower_bits) = _ranks(upper), _ranks(lower)
    return pc.bit_wise_or(pc.shift_left(upper, lower_bits), lower), lower_bits


def _joined(columns: Sequence[Any]) -> tuple[Any, int]:
    """Up to two columns as one column of integers from 0 on, and its size in bits. None without a
    column."""
    ranges = [pc.min_max(column) for column in columns]
    widths = [(ends["max"].as_py() - ends["min"].as_py()).bit_length() for ends in ranges]
    joined: Any = None
    bits = 0
    for column, ends, width in zip(columns, ranges, widths, strict=True):
        if sum(widths) > BITS:
            column, width = _ranks(column)  # noqa: PLW2901
        else:
            column = pc.subtract(column, ends["min"])  # noqa: PLW2901
        joined = column if joined is None else pc.bit_wise_or(pc.shift_left(joined, width), column)
        bits += width
    return joined, bits


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
    groups_of = table.group_by("group", use_threads=False).aggregate([("value", how)])
    order = pc.sort_indices(groups_of["group"])
    return groups_of[f"value_{how}"].combine_chunks().take(order)


def _dense(groups: Any) -> Any:
    """The rank of each group's number among all that exist."""
    return pc.subtract(pc.rank(groups, tiebreaker="dense").cast(pa.int64()), 1)


def _one_of_each(table: Any, nodes: Sequence[str], groups: Any, mask: Any) -> Any:
    """Of the rows of `mask`, that of each group whose node sorts first, as a mask."""
    places = pc.indices_nonzero(mask).cast(pa.int64())
    count = table.num_rows
    names = pc.multiply(_names(table, nodes).take(places), count)
    candidates = pa.table({"group": groups.take(places), "place": pc.add(names, places)})
    lowest_of = candidates.group_by("group", use_threads=False).aggregate([("place", "min")])
    if lowest_of.num_rows == len(places):
        return mask
    lowest = lowest_of["place_min"].combine_chunks()
    chosen = pc.subtract(lowest, pc.multiply(pc.divide(lowest, count), count))
    everything = pc.indices_nonzero(pc.is_valid(groups)).cast(pa.int64())
    return pc.is_in(everything, value_set=chosen)


def _names(table: Any, nodes: Sequence[str]) -> Any:
    """A number of each row's node that sorts as its name does."""
    names = sorted(nodes)
    ranks = pa.array([names.index(node) for node in nodes], pa.int64())
    return ranks.take(table["node"].combine_chunks())


def winner_first(table: Any, nodes: Sequence[str]) -> tuple[Any, Any]:
    """Contenders by key, those of one key with the winner first; and which rows are of a key with
    several contenders. `nodes`: their names by number."""
    table = table.take(pc.sort_indices(table["key"])).combine_chunks()
    keys = table["key"].combine_chunks()
    again = pc.equal(keys.slice(1), keys.slice(0, max(len(keys) - 1, 0)))
    if not again.true_count:
        return table, pa.repeat(pa.scalar(False), len(keys))
    order = table.append_column("dead", table["deleted"].cast(pa.int8())).append_column(
        "name", _names(table, nodes)
    )
    by = ("key", "dead", "name", *COUNTERS)
    places = pc.sort_indices(order, [(name, "ascending") for name in by])
    no = pa.array([False])
    return table.take(places), pc.or_(pa.concat_arrays([again, no]), pa.concat_arrays([no, again]))


def _encoded(column: Any) -> Any:
    """A column as one array with a dictionary."""
    return column.combine_chunks().dictionary_encode()
