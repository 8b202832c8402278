"""Which newest changes a rewrite drops: tombstones, clears and expired entries that hide nothing.
`imap_wal.rewrite.plan` says why no older change of their keys can come back then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imap_wal.clock import SKEW_MS_MAX
from imap_wal.entry import DELETED, EXPIRES_AT_MS, ORDER, SHARED_SESSIONS, Order, Row, is_shared
from imap_wal.rules.alive import has_expired, have_expired
from imap_wal.rules.arrow import pa, pc


def may_be_dropped(row: Row) -> bool:
    """Whether a row may be dropped at some time: it is a tombstone or a clear, or expires."""
    return row[DELETED] or row[EXPIRES_AT_MS] > 0


def may_have_later_copies(order: Order, current: int) -> bool:
    """Whether an agent may still append a copy of a change that counts. `current`: as in
    `TombstonePolicy`."""
    return is_shared(order) and order[0] >= current


@dataclass(frozen=True, slots=True)
class TombstonePolicy:
    """Which newest rows a snapshot keeps. `now_ms`: Unix time for expiry. `complete`: all logs were
    read. `open_nodes`: nodes of embedded stores that may append more; empty in a cluster of
    members. `skew_ms_max`: the allowed difference between clocks, in milliseconds. `current`:
    changes with shared sessions of this incarnation, and of later ones, may still be appended and
    count (`imap_wal.rewrite.plan.first_unfinished`)."""

    now_ms: int
    complete: bool
    open_nodes: frozenset[str] = frozenset()
    skew_ms_max: int = SKEW_MS_MAX
    current: int = 0

    @property
    def _expired_until_ms(self) -> int:
        """An entry that expires until then has expired by every clock within `skew_ms_max`."""
        return self.now_ms - self.skew_ms_max

    def expired(self, expires_at_ms: int) -> bool:
        return has_expired(expires_at_ms, self._expired_until_ms)

    def drops(self, row: Row, node: str, late: bool) -> bool:
        """Whether a newest row is dropped. `late`: it was appended after `settled` was read."""
        # No age decides: with "older than an hour", a deleted key came back when a stuck commit, or
        # a paused plug-in, appended its older value later (decision 17).
        return (
            self.complete
            and self.open_nodes <= {node}
            and not late
            and (row[DELETED] or self.expired(row[EXPIRES_AT_MS]))
            and not may_have_later_copies(row[ORDER], self.current)
        )

    def drop_columns(self, table: Any, nodes: Sequence[str]) -> Any:
        """`drops` for each row of a table with `late`, and the number of each `node`."""
        if not self.complete or len(self.open_nodes) > 1:
            return pa.repeat(pa.scalar(False), table.num_rows)
        column = {name: table[name].combine_chunks() for name in table.schema.names}
        expired = have_expired(column["expires_at_ms"], self._expired_until_ms)
        copies = pc.and_(
            pc.greater_equal(column["session"], SHARED_SESSIONS),
            pc.greater_equal(column["incarnation"], self.current),
        )
        dropped = pc.and_(
            pc.or_(column["deleted"], expired), pc.invert(pc.or_(column["late"], copies))
        )
        for node in self.open_nodes:
            number = nodes.index(node) if node in nodes else -1
            dropped = pc.and_(dropped, pc.equal(column["node"], number))
        return dropped


def are_droppable(batch: Any) -> Any:
    """`may_be_dropped` for each row of a batch."""
    return pc.or_(batch.column("deleted"), pc.greater(batch.column("expires_at_ms"), 0))
