"""One entry of a log with its place, as `dump`, `tail` and `get` print it."""

from __future__ import annotations

from typing import Any, NamedTuple

from imap_wal.decoder import Decoder
from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    KEY_CLASS,
    MAP,
    ORDER,
    PARTITION,
    PARTITION_COUNT,
    TIMESTAMP_MS,
    VALUE_CLASS,
    Row,
    is_clear,
)
from imap_wal.format import Position
from rewrite_cli.console import output as out
from rewrite_cli.console.times import iso
from rewrite_cli.entries.losses import Losses


class Line(NamedTuple):
    """One entry and its position in the log."""

    timestamp_ms: int
    cluster: str
    node: str
    position: Position | None
    """None: in a snapshot, which has no positions."""
    row: Row
    decoder: Decoder


def show(line: Line, output: str, losses: Losses) -> None:
    """Print one line, as text or as JSON."""
    if output == out.JSON:
        out.print_line(json_of(line, losses))
    else:
        out.echo(out.shown(text_of(line, losses)))


def json_of(line: Line, losses: Losses) -> dict[str, Any]:
    """The entry for JSON."""
    row = line.row
    return {
        "cluster": line.cluster,
        "node": line.node,
        "position": str(line.position) if line.position is not None else None,
        "map": row[MAP],
        "key": losses.key(row, line.decoder),
        "key_bytes": None if is_clear(row) else f"hex:{row[KEY].hex()}",
        "value": losses.value(row, line.decoder),
        "deleted": row[DELETED],
        "time": iso(row[TIMESTAMP_MS]),
        "timestamp_ms": row[TIMESTAMP_MS],
        "expires_at_ms": 0 if is_clear(row) else row[EXPIRES_AT_MS],
        "cleared": [row[PARTITION], row[PARTITION_COUNT]] if is_clear(row) else None,
        "key_class": row[KEY_CLASS],
        "value_class": row[VALUE_CLASS],
        "partition": row[PARTITION],
        "order": list(row[ORDER]),
    }


def text_of(line: Line, losses: Losses) -> str:
    """The entry as one line."""
    row = line.row
    if is_clear(row):
        return _clear_text(line)
    change = "deleted" if row[DELETED] else f"= {losses.value_text(row, line.decoder)}"
    place = "snapshot" if line.position is None else str(line.position)
    expiry = f"  (expires {iso(row[EXPIRES_AT_MS])})" if row[EXPIRES_AT_MS] else ""
    return (
        f"{iso(row[TIMESTAMP_MS])}  {line.node}  {place:<39}  "
        f"{row[MAP]}[{losses.key_text(row, line.decoder)}] {change}{expiry}"
    )


def _clear_text(line: Line) -> str:
    row = line.row
    place = "snapshot" if line.position is None else str(line.position)
    change = f"cleared (partition {row[PARTITION]} of {row[PARTITION_COUNT]})"
    return f"{iso(row[TIMESTAMP_MS])}  {line.node}  {place:<39}  {row[MAP]} {change}"
