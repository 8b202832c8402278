"""Which change counts if two nodes have changes of one key with the same (incarnation, partition
version), and no change is newer.

    writer      a node; of a change with a shared session, that session, in the logs of any nodes
    contenders  the changes with the greatest (incarnation, partition version): the newest change of
                each writer. Copies of a change, which have one order, are one contender
    winner      a value before a tombstone, then the node whose name sorts first
    conflict    contenders that differ, including two that should be copies but are not equal

Versions without views left such keys after a split network; a copied folder of a node does the
same. Neither clocks nor the order of reading files decide: a merge keeps all contenders of a key
together, so every merge of the same rows has the same winner. See
docs/decisions/0024-two-claims-one-winner.md, and 0056-copies.md for shared sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    ORDER,
    VALUE,
    VALUE_CLASS,
    Order,
    Row,
    is_shared,
)

_log = logging.getLogger("imap_wal")

Claim: TypeAlias = tuple[Row, str]
"""A row, and its node."""
NAMED_MAX = 100
"""How many keys in conflict each reader names in its log."""
KEY_BYTES_SHOWN = 200
ADVICE = (
    "decide with `imap-wal rewrite --resolve newest` or `--resolve node=NAME`, or in a copy with "
    "`imap-wal repair --prefer NAME`"
)

T = TypeVar("T")


class Contender(NamedTuple):
    """What decides between contenders. `content`: equal for copies of one change."""

    order: Order
    node: str
    deleted: bool
    content: Any


def content_of(row: Sequence[Any]) -> tuple[Any, ...]:
    """What a change says about its key."""
    return row[VALUE], row[VALUE_CLASS], row[DELETED], row[EXPIRES_AT_MS]


def one_writer(order: Order, node: str, other: Order, of: str) -> bool:
    """Whether one writer wrote both changes, so that the greater order is newer."""
    if is_shared(order) or is_shared(other):
        return order[2] == other[2]
    return node == of


def joined(contenders: Sequence[T], new: T, about: Callable[[T], Contender]) -> list[T]:
    """The contenders of a key after one more change with the same (incarnation, partition version);
    the winner first."""
    order, node, _, content = about(new)
    kept = []
    for each in contenders:
        known, owner, _, said = about(each)
        if not one_writer(known, owner, order, node) or (
            known == order and owner != node and said != content
        ):
            kept.append(each)
        elif (known, node) >= (order, owner):
            return list(contenders)
    return sorted([*kept, new], key=lambda each: (about(each)[2], about(each)[1]))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key that several nodes claim: the newest change of each, the winner first."""

    map: str
    key: bytes
    claims: tuple[Claim, ...]

    @property
    def pair(self) -> tuple[int, int]:
        incarnation, version, _, _ = self.claims[0][0][ORDER]
        return incarnation, version

    @property
    def key_text(self) -> str:
        """The start of the key, for people."""
        more = "…" if len(self.key) > KEY_BYTES_SHOWN else ""
        return repr(self.key[:KEY_BYTES_SHOWN]) + more

    def text(self, places: Mapping[tuple[str, str, bytes], str] | None = None) -> str:
        """For people. `places`: (node, map, key) → file and position, if known."""
        said = []
        for row, node in self.claims:
            place = (places or {}).get((node, self.map, self.key), "")
            said.append(f"node {node!r}{f' in {place}' if place else ''} (order {row[ORDER]})")
        incarnation, version = self.pair
        return (
            f"map {self.map!r}, key {self.key_text}: {' and '.join(said)} have a change of "
            f"incarnation {incarnation}, "
            f"partition version {version}; that of node {self.claims[0][1]!r} counts"
        )


def conflict(name: str, key: bytes, claims: Sequence[Claim]) -> Conflict | None:
    """The conflict between contenders, the winner first; None if they are equal."""
    said = {content_of(row) for row, _ in claims}
    return Conflict(name, key, tuple(claims)) if len(said) > 1 else None


class Noted:
    """The conflicts that one reader has found: it logs each key once, at most `NAMED_MAX`."""

    def __init__(self) -> None:
        self._named: set[tuple[str, bytes]] = set()
        self._full = False

    @property
    def count(self) -> int:
        """How many keys were found in conflict, at most `NAMED_MAX`."""
        return len(self._named)

    def note(self, conflicts: Iterable[Conflict]) -> None:
        for each in conflicts:
            if self._full or (each.map, each.key) in self._named:
                continue
            if len(self._named) == NAMED_MAX:
                self._full = True
                _log.warning(
                    "more than %d keys are in conflict; `imap-wal verify` counts them", NAMED_MAX
                )
                continue
            self._named.add((each.map, each.key))
            _log.warning(
                "conflict of order: %s. The others are kept. `imap-wal verify` names files "
                "and positions; %s",
                each.text(),
                ADVICE,
            )
