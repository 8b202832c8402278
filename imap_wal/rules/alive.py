"""When the newest change of a key is in the map: it is no tombstone and no clear, and it has not
expired. An upsert expires at the millisecond `expires_at_ms` (0: never)."""

from __future__ import annotations

from typing import Any

from imap_wal.entry import DELETED, EXPIRES_AT_MS, Row
from imap_wal.rules.arrow import pc


def has_expired(expires_at_ms: int, now_ms: int) -> bool:
    return 0 < expires_at_ms <= now_ms


def is_live(deleted: bool, expires_at_ms: int, now_ms: int) -> bool:
    return not deleted and not has_expired(expires_at_ms, now_ms)


def is_alive(row: Row, now_ms: int) -> bool:
    return is_live(row[DELETED], row[EXPIRES_AT_MS], now_ms)


def have_expired(expires: Any, now_ms: int) -> Any:
    """`has_expired` for a column `expires_at_ms`."""
    return pc.and_(pc.greater(expires, 0), pc.less_equal(expires, now_ms))


def are_alive(batch: Any, now_ms: int) -> Any:
    """`is_alive` for each row of a batch."""
    return pc.invert(pc.or_(batch["deleted"], have_expired(batch["expires_at_ms"], now_ms)))
