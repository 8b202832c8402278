"""Chooses, by columns, which contenders a snapshot keeps: none that the rule drops, and all claims
of keys in conflict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from imap_wal.entry import KEY
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, nodes_of, to_rows
from imap_wal.read.newest.rivals import Conflict, conflict
from imap_wal.rewrite.columns.winners import RANKS
from imap_wal.rules.dropped import TombstonePolicy
from imap_wal.rules.newer import Claim, winner_first
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc

PICK_SCHEMA = pa.schema(
    [pa.field("source", pa.int32()), pa.field("row", pa.int64()), *RANKS],
)


def picks(table: Any, rule: TombstonePolicy, nodes: Sequence[str], rank: int) -> Any:
    """From contenders: which rows must be read, sorted by source and row. They are numbered by key,
    the claims of a key with the winner first, from `rank` on."""
    table, claimed = winner_first(table, nodes)
    dropped = rule.drop_columns(table, nodes)
    stays = pc.or_(claimed, pc.invert(dropped))
    picked = pa.table(
        [
            table["source"].filter(stays),
            table["row"].filter(stays),
            _numbers(rank, stays.true_count),
            claimed.filter(stays),
            dropped.filter(stays),
            table["late"].filter(stays),
        ],
        PICK_SCHEMA,
    )
    return picked.sort_by([("source", "ascending"), ("row", "ascending")])


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
            rows_of_few = zip(
                to_rows(few.select(SNAPSHOT_SCHEMA.names)), nodes_of(few), strict=True
            )
            dropped = few.column("dropped").to_pylist()
            claims += [
                (number, place, claim, drop)
                for place, claim, drop in zip(places.to_pylist(), rows_of_few, dropped, strict=True)
            ]
    gone, lost = set[tuple[int, int]](), set[tuple[int, int]]()
    conflicts: list[Conflict] = []
    for key, grouped in groupby(claims, key=lambda claim: claim[2][0][KEY]):
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
        stays = pa.array([(number, place) not in gone for place in order], pa.bool_())
        losing = pa.array([(number, place) in lost for place in order], pa.bool_())
        yield rows.filter(stays), losing.filter(stays), conflicts if not number else []


def _numbers(first: int, count: int) -> Any:
    """The integers from `first` on."""
    places = pc.indices_nonzero(pa.repeat(pa.scalar(True), count)).cast(pa.int64())
    return pc.add(places, first)
