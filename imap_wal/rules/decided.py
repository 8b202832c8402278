"""Which claims an operator has decided against: for a key in conflict, only the claim of one node
counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imap_wal.entry import KEY, MAP, ORDER, Pair, Row
from imap_wal.rules.arrow import pa, pc
from imap_wal.rules.newer import PAIR


@dataclass(frozen=True, slots=True)
class Decisions:
    """(map, key) → the pair in conflict, and the node whose claim wins."""

    winners: Mapping[tuple[str, bytes], tuple[Pair, str]] = field(default_factory=dict)

    def counting(self, node: str, rows: list[Row]) -> list[Row]:
        """The rows of a node without its losing claims."""
        winners = self.winners
        if not winners:
            return rows
        return [
            row
            for row in rows
            if (row[MAP], row[KEY]) not in winners
            or not self._loses(node, row[MAP], row[KEY], row[ORDER][:2])
        ]

    def counting_columns(self, batch: Any, name: str, node: str = "") -> Any:
        """The rows of a batch of one map without losing claims. `node`: the one that wrote all of
        them; "": the column `node` has it."""
        keys = [key for map_name, key in self.winners if map_name == name]
        if not keys:
            return batch
        column = batch.column("key")
        places = pc.indices_nonzero(pc.is_in(column, value_set=pa.array(keys, pa.binary())))
        lost = set()
        for place in places.to_pylist():
            pair = tuple(batch.column(field_name)[place].as_py() for field_name in PAIR)
            owner = node or batch.column("node")[place].as_py()
            if self._loses(owner, name, column[place].as_py(), pair):
                lost.add(place)
        mask = [place not in lost for place in range(len(batch))]
        return batch.filter(pa.array(mask, pa.bool_()))

    def _loses(self, node: str, name: str, key: bytes, pair: tuple[int, ...]) -> bool:
        """Whether a claim of a decided key does not count."""
        decided, winner = self.winners[name, key]
        return pair == decided and node != winner


UNDECIDED = Decisions()
