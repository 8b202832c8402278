"""Chooses, by columns, which contenders a snapshot keeps: none that are cleared or that the rule
drops, and all claims of keys in conflict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from imap_wal.entry import KEY, SHARED_SESSIONS
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, have_expired, nodes_of, to_rows
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.rivals import Claim, Conflict, conflict
from imap_wal.rewrite.columns.key_columns import ORDER_COLUMNS
from imap_wal.rewrite.columns.newest_keys import KEY_SCHEMA, sorted_by_key
from imap_wal.rewrite.columns.winners import RANKS
from imap_wal.rewrite.plan import TombstonePolicy
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

PICK_SCHEMA = pa.schema(
    [pa.field("source", pa.int32()), pa.field("row", pa.int64()), *RANKS],
)
CLEARED_ROWS = 65_536


def without_cleared(table: Any, name: str, cleared: Cleared) -> Any:
    """The rows of a map that no clear deletes."""
    if name not in cleared:
        return table
    kept = []
    for batch in table.to_batches(max_chunksize=CLEARED_ROWS):
        orders = zip(*(batch.column(each).to_pylist() for each in ORDER_COLUMNS), strict=True)
        hidden = cleared.hidden(name, batch.column("key").to_pylist(), list(orders))
        mask = [index not in hidden for index in range(len(batch))]
        kept.append(batch.filter(pa.array(mask, pa.bool_())))
    return pa.Table.from_batches(kept, KEY_SCHEMA)


def picks(table: Any, rule: TombstonePolicy, nodes: Sequence[str], rank: int) -> Any:
    """From contenders: which rows must be read, sorted by source and row. They are numbered by key,
    the claims of a key with the winner first, from `rank` on."""
    table = sorted_by_key(table).combine_chunks()
    keys = table["key"].combine_chunks()
    again = pc.equal(keys.slice(1), keys.slice(0, max(len(keys) - 1, 0)))
    claimed = _constant(False, len(keys))
    if again.true_count:
        names = sorted(nodes)
        ranks = pa.array([names.index(node) for node in nodes], pa.int64())
        order = table.append_column("dead", table["deleted"].cast(pa.int8())).append_column(
            "name", ranks.take(table["node"].combine_chunks())
        )
        table = table.take(
            pc.sort_indices(order, [(each, "ascending") for each in ("key", "dead", "name")])
        )
        no = pa.array([False])
        claimed = pc.or_(pa.concat_arrays([again, no]), pa.concat_arrays([no, again]))
    dropped = _dropped(table, rule, nodes)
    kept = pc.or_(claimed, pc.invert(dropped))
    found = pa.table(
        [
            table["source"].filter(kept),
            table["row"].filter(kept),
            _numbers(rank, kept.true_count),
            claimed.filter(kept),
            dropped.filter(kept),
            table["late"].filter(kept),
        ],
        PICK_SCHEMA,
    )
    return found.sort_by([("source", "ascending"), ("row", "ascending")])


def _dropped(table: Any, rule: TombstonePolicy, nodes: Sequence[str]) -> Any:
    """`TombstonePolicy.decide` for columns: which rows are dropped, if they are newest."""
    if not rule.complete or len(rule.open_nodes) > 1:
        return _constant(False, table.num_rows)
    expires = table["expires_at_ms"].combine_chunks()
    expired = have_expired(expires, rule.now_ms - rule.skew_ms_max)
    dead = pc.or_(table["deleted"].combine_chunks(), expired)
    found = pc.and_(dead, pc.invert(table["late"].combine_chunks()))
    unfinished = pc.and_(
        pc.greater_equal(table["session"].combine_chunks(), SHARED_SESSIONS),
        pc.greater_equal(table["incarnation"].combine_chunks(), rule.current),
    )
    found = pc.and_(found, pc.invert(unfinished))
    for node in rule.open_nodes:
        number = nodes.index(node) if node in nodes else -1
        found = pc.and_(found, pc.equal(table["node"].combine_chunks(), number))
    return found


def decided(name: str, pages: Iterator[Any]) -> Iterator[tuple[Any, Any, list[Conflict]]]:
    """From rows in key order with `RANKED_SCHEMA`: the batches of rows that are kept, which of them
    are claims that lost (None: none), and the conflicts."""
    group: list[Any] = []
    for page in pages:
        batch = page
        start = 0
        if group:  # more claims of its key?
            key = group[0].column("key")[0]
            keys = batch.column("key")
            while start < len(batch) and keys[start] == key:
                start += 1
            if start:
                group.append(batch.slice(0, start))
                batch = batch.slice(start)
            if not len(batch):
                continue
            yield from _of_claims(name, group)
            group = []
        if batch.column("claimed")[-1].as_py():
            keys, start = batch.column("key"), len(batch) - 1
            while start and keys[start - 1] == keys[start]:
                start -= 1
            group, batch = [batch.slice(start)], batch.slice(0, start)
        if len(batch):
            yield from _of_claims(name, [batch])
    if group:
        yield from _of_claims(name, group)


def _of_claims(name: str, batches: list[Any]) -> Iterator[tuple[Any, Any, list[Conflict]]]:
    """`decided` for batches, each with all claims of its keys. The batches are not joined: a column
    must be smaller than 2 GiB."""
    claims: list[tuple[int, int, Claim, bool]] = []
    for number, batch in enumerate(batches):
        places = pc.indices_nonzero(batch.column("claimed"))
        if len(places):
            few = batch.take(places)
            found = zip(to_rows(few.select(SNAPSHOT_SCHEMA.names)), nodes_of(few), strict=True)
            dropped = few.column("dropped").to_pylist()
            claims += [
                (number, place, claim, drop)
                for place, claim, drop in zip(places.to_pylist(), found, dropped, strict=True)
            ]
    gone, lost = set[tuple[int, int]](), set[tuple[int, int]]()
    conflicts: list[Conflict] = []
    for key, grouped in groupby(claims, key=lambda each: each[2][0][KEY]):
        group = list(grouped)
        one = conflict(name, key, [claim for _, _, claim, _ in group])
        losers = [(number, place) for number, place, _, _ in group[1:]]
        if one is not None:
            conflicts.append(one)
            lost.update(losers)
            continue
        gone.update(losers)
        number, place, _, drop = group[0]
        if drop:
            gone.add((number, place))
    for number, batch in enumerate(batches):
        rows = batch.select(SNAPSHOT_SCHEMA.names)
        if not claims:
            yield rows, None, []
            continue
        order = range(len(batch))
        kept = pa.array([(number, place) not in gone for place in order], pa.bool_())
        losing = pa.array([(number, place) in lost for place in order], pa.bool_())
        yield rows.filter(kept), losing.filter(kept), conflicts if not number else []


def _constant(value: bool, count: int) -> Any:
    return pa.repeat(pa.scalar(value), count)


def _numbers(first: int, count: int) -> Any:
    """The integers from `first` on."""
    places = pc.indices_nonzero(_constant(True, count)).cast(pa.int64())
    return pc.add(places, first)
