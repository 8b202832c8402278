"""The state of one key in a map before and after each change.

Only order decides which change counts, as in every merge: a change of a lower order than the newest
one has no image, because it does not change the map.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from imap_wal.entry import DELETED, EXPIRES_AT_MS, ORDER, TIMESTAMP_MS, Row, is_clear
from imap_wal.rules.alive import has_expired
from imap_wal.rules.cleared import NO_FLOOR, is_hidden
from imap_wal.rules.newer import Claim, Contest, content_of

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
"""The values of `_change_type`: those of Spark's own interface of a changelog, and of Delta."""
_CONTEST: Contest[Claim] = Contest(
    lambda claim: claim[0][ORDER],
    itemgetter(1),
    lambda claim: claim[0][DELETED],
    lambda claim: content_of(claim[0]),
)


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
        """The contenders (`imap_wal.rules.newer`), the winner first."""
        self._floor = NO_FLOOR

    def add(self, row: Row, node: str) -> None:
        """A change of the key, or a clear of its partition."""
        if is_clear(row):
            if not is_hidden(row, self._floor):
                self._floor = row[ORDER]
            return
        self._claims = _CONTEST.add(self._claims, (row, node))

    @property
    def live(self) -> Claim | None:
        """The entry that the map has; it may have expired."""
        for claim in self._claims:
            if not is_hidden(claim[0], self._floor):
                return None if claim[0][DELETED] else claim
        return None

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


def _is_same(claim: Claim | None, other: Claim | None) -> bool:
    """Whether there is no difference; the logs of several nodes may have copies of one change."""
    if claim is None or other is None:
        return claim is other
    (row, _), (other_row, _) = claim, other
    return row[ORDER] == other_row[ORDER] and content_of(row) == content_of(other_row)
