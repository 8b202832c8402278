"""Shows what is kept for readers although a snapshot covers it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from imap_wal.manifest.readers import HISTORY
from imap_wal.retention.kept import KeptFor
from imap_wal.retention.snapshots import Unfinished
from rewrite_cli.console.output import count, duration, size


def name_of(reader: str) -> str:
    """A reader in a sentence."""
    return "the history" if reader == HISTORY else f"reader {reader!r}"


def sizes(held: KeptFor) -> str:
    """How much is kept for one reader."""
    return (
        f"about {size(held.log_bytes)} of log, {count(held.snapshot_files, 'file')} of former "
        f"snapshots with {size(held.snapshot_bytes)}"
    )


def unfinished_text(cluster: str, left: Unfinished) -> str:
    """What unfinished rewrites have left, and how it is removed."""
    age = "" if left.age_ms is None else f", the newest {duration(left.age_ms / 1000)} old"
    return (
        f"{cluster}: {count(left.files, 'snapshot file')} with {size(left.bytes)}{age}, of a "
        "rewrite that runs or was killed; prune removes such files after 24 hours, and if no "
        "rewrite runs, at once: imap-wal prune --orphans-older-than 1m"
    )


def kept_json(held: KeptFor) -> dict[str, Any]:
    """For JSON."""
    positions = {node: str(at) for node, at in held.positions.items()}
    return {**asdict(held), "positions": positions, "is_stale": held.is_stale}
