"""Shows what is kept for readers although a snapshot covers it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from imap_wal.manifest.readers import HISTORY
from imap_wal.retention.kept import KeptFor
from rewrite_cli.console.output import count, size


def name_of(reader: str) -> str:
    """A reader in a sentence."""
    return "the history" if reader == HISTORY else f"reader {reader!r}"


def sizes(kept: KeptFor) -> str:
    """How much is kept for one reader."""
    return (
        f"about {size(kept.log_bytes)} of log, {count(kept.snapshot_files, 'file')} of former "
        f"snapshots with {size(kept.snapshot_bytes)}"
    )


def kept_json(kept: KeptFor) -> dict[str, Any]:
    """For JSON."""
    positions = {node: str(at) for node, at in kept.positions.items()}
    return {**asdict(kept), "positions": positions, "is_stale": kept.is_stale}
