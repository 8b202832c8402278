"""Which entries of a file count. An entry counts if all of this is true:

since, until   its position is above `since` and up to `until`
covered        it is above the position up to which a snapshot has the entries of its map
cuts           (incarnation, position): it is not from an older incarnation after the position
overtaken      map → partition → (incarnation, version): its pair is not lower. Otherwise the
               owner that wrote it had been replaced
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import compress
from typing import Any, Protocol, TypeAlias

from imap_wal.entry import MAP, ORDER, PARTITION, Pair, Row
from imap_wal.format import START, Position
from imap_wal.rules.arrow import pa, pc

Cuts: TypeAlias = tuple[tuple[int, Position], ...]
Overtaken: TypeAlias = Mapping[str, Mapping[int, Pair]]

_NO_PAIRS: Mapping[int, Pair] = {}
_RANGE = list(Position._fields)
_OWNER = ["partition", "incarnation", "partition_version"]


class Limits(Protocol):
    """A file's limits (`imap_wal.read.file_scan.FileScan`)."""

    @property
    def since(self) -> Position | None: ...

    @property
    def until(self) -> Position | None: ...

    @property
    def covered(self) -> Mapping[str, Position]: ...

    @property
    def cuts(self) -> Cuts: ...

    @property
    def overtaken(self) -> Overtaken: ...


def void_below(cuts: Cuts, position: Position) -> int:
    """Entries at `position` of an older incarnation than this are void (0: none)."""
    return max((incarnation for incarnation, cut in cuts if cut < position), default=0)


def may_count(limits: Limits, name: str, first: Position, last: Position) -> bool:
    """Whether an entry of a map between two positions may count."""
    return _mark(limits, name) < last and (limits.until is None or first <= limits.until)


def is_uniform(limits: Limits, name: str, first: Position, last: Position) -> bool:
    """Whether the limits treat all positions of a map between two of them alike, so that an entry's
    own position is not needed."""
    return (
        not first <= _mark(limits, name) < last
        and not (limits.until is not None and first <= limits.until < last)
        and void_below(limits.cuts, first) == void_below(limits.cuts, last)
    )


def counting_rows(
    limits: Limits,
    rows: list[Row],
    positions: list[Position] | None,
    last: Position,
    maps: Collection[str] | None = None,
    *,
    alike: bool = True,
) -> tuple[list[Row], list[Position] | None]:
    """The rows of wanted maps, at positions up to `last`, that count; and their positions.
    `alike`: `is_uniform` is true of each map. Otherwise `positions` are needed."""
    if maps is not None:
        rows, positions = _where(rows, positions, [row[MAP] in maps for row in rows])
    if alike:
        if hidden := {name for name, mark in limits.covered.items() if last <= mark}:
            rows, positions = _where(rows, positions, [row[MAP] not in hidden for row in rows])
        if void := void_below(limits.cuts, last):
            rows, positions = _where(rows, positions, [row[ORDER][0] >= void for row in rows])
    else:
        assert positions is not None
        until, cuts = limits.until or last, limits.cuts
        marks = {name: _mark(limits, name) for name in {row[MAP] for row in rows}}
        tests = [
            marks[row[MAP]] < place <= until and row[ORDER][0] >= void_below(cuts, place)
            for row, place in zip(rows, positions, strict=True)
        ]
        rows, positions = _where(rows, positions, tests)
    if limits.overtaken:
        rows, positions = _where(rows, positions, _not_overtaken(rows, limits.overtaken))
    return rows, positions


def _where(
    rows: list[Row], positions: list[Position] | None, tests: list[bool]
) -> tuple[list[Row], list[Position] | None]:
    if all(tests):
        return rows, positions
    return list(compress(rows, tests)), positions and list(compress(positions, tests))


def _mark(limits: Limits, name: str) -> Position:
    return max(limits.since or START, limits.covered.get(name, START))


def _not_overtaken(rows: Sequence[Row], overtaken: Overtaken) -> list[bool]:
    pairs_of = overtaken.get
    # An order of four fields compared with a pair: it is lower only if its first two fields are.
    # The tombstone that would hide such a row may be dropped: the deleted key came back (decision
    # 17).
    return [not row[ORDER] < pairs_of(row[MAP], _NO_PAIRS).get(row[PARTITION], ()) for row in rows]


def needed_columns(limits: Limits, name: str, first: Position, last: Position) -> list[str]:
    """The columns that `counting_columns` needs."""
    return [
        *(() if is_uniform(limits, name, first, last) else _RANGE),
        *(_OWNER if limits.overtaken.get(name) else ()),
        *(("incarnation",) if void_below(limits.cuts, last) else ()),
    ]


def counting_columns(limits: Limits, batch: Any, name: str, first: Position, last: Position) -> Any:
    """The rows of a batch that count. All are of one map, between two positions."""
    tests = []
    if is_uniform(limits, name, first, last):
        if void := void_below(limits.cuts, last):
            tests.append(pc.greater_equal(batch.column("incarnation"), void))
    else:
        tests.append(_above(batch, _mark(limits, name)))
        if limits.until is not None:
            tests.append(pc.invert(_above(batch, limits.until)))
        for incarnation, cut in limits.cuts:
            if cut < last:
                older = pc.less(batch.column("incarnation"), incarnation)
                tests.append(pc.invert(pc.and_(_above(batch, cut), older)))
    if pairs := limits.overtaken.get(name):
        tests.append(pc.invert(_are_overtaken(batch, pairs)))
    return batch.filter(reduce(pc.and_, tests)) if tests else batch


def _above(batch: Any, place: Position) -> Any:
    """Which rows have a greater position."""
    above: Any = None
    for name, value in zip(reversed(_RANGE), reversed(place), strict=True):
        column = batch.column(name)
        greater = pc.greater(column, value)
        if above is not None:
            greater = pc.or_(greater, pc.and_(pc.equal(column, value), above))
        above = greater
    return above


def _are_overtaken(batch: Any, pairs: Mapping[int, Pair]) -> Any:
    """For each row, whether its pair is lower than the pair of its partition."""
    place = pc.index_in(batch.column("partition"), value_set=pa.array(list(pairs), pa.int64()))
    incarnation, version = (
        pa.array([pair[part] for pair in pairs.values()], pa.int64()).take(place) for part in (0, 1)
    )
    own = batch.column("incarnation")
    lower = pc.and_(pc.equal(own, incarnation), pc.less(batch.column("partition_version"), version))
    return pc.fill_null(pc.or_(pc.less(own, incarnation), lower), False)
