"""What a repair keeps and gives up, file by file. A dry run and a real one have the same report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SALVAGE, POINT_IN_TIME = "salvage", "point-in-time"

COPIED = "copied"
"""Byte for byte. If the preceding segment changed, its checksum in the header is cleared."""
TRIMMED = "trimmed"
"""The start of a segment, byte for byte, without a torn tail."""
REWRITTEN = "rewritten"
"""A new file with the entries that are kept."""
EMPTIED = "emptied"
"""A segment without frames. Its name is kept, so that no later position is confused with one of
its positions."""
GIVEN_UP = "given-up"
"""Not in the copy."""
LEFT_OUT = "left-out"
"""No restore reads it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Positions, frames, records and bytes; None if unknown, or if the file has no such thing."""

    first: str | None = None
    last: str | None = None
    frames: int | None = None
    records: int | None = None
    bytes: int | None = None


NOTHING = Extent(None, None, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Item:
    """One file of the log. `file` is its name in the log, `to` its name in the copy if that
    differs."""

    file: str
    kind: str
    status: str
    action: str
    kept: Extent = NOTHING
    given_up: Extent | None = None
    what: str = ""
    to: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summary(items: Sequence[Item]) -> dict[str, Any]:
    """Totals. `unknown_loss` counts files that lost an unknown number of records, and
    `unknown_bytes` those that lost an unknown number of bytes: `given_up_records` and
    `given_up_bytes` do not include them."""
    lost = [item.given_up for item in items if item.given_up is not None]
    return {
        "files": len(items),
        **{
            action.replace("-", "_"): sum(item.action == action for item in items)
            for action in (COPIED, TRIMMED, REWRITTEN, EMPTIED, GIVEN_UP, LEFT_OUT)
        },
        "kept_frames": sum(item.kept.frames or 0 for item in items),
        "kept_records": sum(item.kept.records or 0 for item in items),
        "damaged": len(lost),
        "given_up_frames": sum(extent.frames or 0 for extent in lost),
        "given_up_records": sum(extent.records or 0 for extent in lost),
        "given_up_bytes": sum(extent.bytes or 0 for extent in lost),
        "unknown_loss": sum(extent.records is None for extent in lost),
        "unknown_bytes": sum(extent.bytes is None for extent in lost),
    }
