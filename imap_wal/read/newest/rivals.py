"""Keys in conflict: several nodes claim a key (`imap_wal.rules.newer`), and their claims differ,
even if they should be copies of one change. Readers use the winner, and say so in their log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from imap_wal.entry import ORDER
from imap_wal.rules.newer import Claim, content_of

_log = logging.getLogger("imap_wal")

NAMED_MAX = 100
"""How many keys in conflict each reader names in its log."""
KEY_BYTES_SHOWN = 200
ADVICE = (
    "decide with `imap-wal rewrite --resolve newest` or `--resolve node=NAME`, or in a copy with "
    "`imap-wal repair --prefer NAME`"
)


@dataclass(frozen=True, slots=True)
class RivalClaims:
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


def conflict(name: str, key: bytes, claims: Sequence[Claim]) -> RivalClaims | None:
    """The conflict between contenders, the winner first; None if they are equal."""
    said = {content_of(row) for row, _ in claims}
    return RivalClaims(name, key, tuple(claims)) if len(said) > 1 else None


class Noted:
    """The conflicts that one reader has found: it logs each key once, at most `NAMED_MAX`."""

    def __init__(self) -> None:
        self._named: set[tuple[str, bytes]] = set()
        self._full = False

    @property
    def count(self) -> int:
        """How many keys were found in conflict, at most `NAMED_MAX`."""
        return len(self._named)

    def note(self, conflicts: Iterable[RivalClaims]) -> None:
        for conflict in conflicts:
            if self._full or (conflict.map, conflict.key) in self._named:
                continue
            if len(self._named) == NAMED_MAX:
                self._full = True
                _log.warning(
                    "more than %d keys are in conflict; `imap-wal verify` counts them", NAMED_MAX
                )
                continue
            self._named.add((conflict.map, conflict.key))
            _log.warning(
                "conflict of order: %s. The others are kept. `imap-wal verify` names files "
                "and positions; %s",
                conflict.text(),
                ADVICE,
            )
