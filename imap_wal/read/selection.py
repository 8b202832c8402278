"""Which entries of a file count."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import compress

from imap_wal.entry import MAP, ORDER, PARTITION, Row
from imap_wal.format import Position
from imap_wal.read.file_scan import Overtaken


def void_below(cuts: tuple[tuple[int, Position], ...], position: Position) -> int:
    """Entries at `position` of an older incarnation than this are void (0: none)."""
    return max((incarnation for incarnation, cut in cuts if cut < position), default=0)


def select(
    rows: list[Row],
    places: list[Position] | None,
    maps: Collection[str] | None,
    covered: Collection[str],
    incarnation: int,
) -> tuple[list[Row], list[Position] | None]:
    """Leaves out rows of unwanted maps, of covered maps, and of older incarnations."""
    if places is not None and (maps is not None or covered or incarnation):
        pairs = [
            (row, place)
            for row, place in zip(rows, places, strict=True)
            if (maps is None or row[MAP] in maps)
            and row[MAP] not in covered
            and row[ORDER][0] >= incarnation
        ]
        return [row for row, _ in pairs], [place for _, place in pairs]
    if maps is not None:
        rows = [row for row in rows if row[MAP] in maps]
    if covered:
        rows = [row for row in rows if row[MAP] not in covered]
    if incarnation:
        rows = [row for row in rows if row[ORDER][0] >= incarnation]
    return rows, places


def without_overtaken(
    rows: list[Row], places: list[Position] | None, overtaken: Overtaken
) -> tuple[list[Row], list[Position] | None]:
    """Leaves out entries of owners that had been replaced before a snapshot was made."""
    if not overtaken or not rows:
        return rows, places
    tables = overtaken.get
    nothing: Mapping[int, tuple[int, int]] = {}
    # An order of four fields compared with a pair: it is lower only if its first two fields are.
    kept = [not row[ORDER] < tables(row[MAP], nothing).get(row[PARTITION], ()) for row in rows]
    if all(kept):
        return rows, places
    if places is not None:
        places = list(compress(places, kept))
    return list(compress(rows, kept)), places
