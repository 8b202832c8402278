"""The state of one key in a map before and after each change.

Only order decides which change counts, as in every merge: a change of a lower order than the newest
one has no image, because it does not change the map.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    ORDER,
    TIMESTAMP_MS,
    Order,
    Row,
    has_expired,
    is_clear,
)
from imap_wal.read.newest.rivals import Claim, Contender, content_of, joined

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
"""The values of `_change_type`: those of Spark's own interface of a changelog, and of Delta."""
_LOWEST: Order = (-1, -1, -1, -1)


class Image(NamedTuple):
    """An entry, the node that wrote it, and the change that began or ended it."""

    kind: str
    row: Row
    node: str
    change: Row


class KeyState:
    """The state of one key in a map."""

    __slots__ = ("_claims", "_floor")

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        """The contenders (`imap_wal.read.newest.rivals`), the winner first."""
        self._floor = _LOWEST

    def add(self, row: Row, node: str) -> None:
        """A change of the key, or a clear of its partition."""
        if is_clear(row):
            self._floor = max(self._floor, row[ORDER])
            return
        pair = row[ORDER][:2]
        known = self._claims[0][0][ORDER][:2] if self._claims else pair
        if pair > known:
            self._claims = []
        if pair >= known:
            self._claims = joined(self._claims, (row, node), _about)

    @property
    def live(self) -> Claim | None:
        """The entry that the map has; it may have expired."""
        found = next((each for each in self._claims if each[0][ORDER] >= self._floor), None)
        return None if found is None or found[0][DELETED] else found

    def images(self, row: Row, node: str) -> Iterator[Image]:
        """Add a change, and return the images of what it changed."""
        before = self.live
        self.add(row, node)
        after = self.live
        if _is_same(before, after):
            return
        if after is None:
            assert before is not None
            yield Image(DELETE, *before, row)
        elif before is None or has_expired(before[0][EXPIRES_AT_MS], row[TIMESTAMP_MS]):
            yield Image(INSERT, *after, row)
        else:
            yield Image(BEFORE, *before, row)
            yield Image(AFTER, *after, row)


def _about(claim: Claim) -> Contender:
    row, node = claim
    return Contender(row[ORDER], node, row[DELETED], content_of(row))


def _is_same(claim: Claim | None, other: Claim | None) -> bool:
    """Whether there is no difference; the logs of several nodes may have copies of one change."""
    if claim is None or other is None:
        return claim is other
    (row, _), (known, _) = claim, other
    return row[ORDER] == known[ORDER] and content_of(row) == content_of(known)
