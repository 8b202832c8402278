"""Logs that are worth a compaction, and their size."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import imap_wal

AUTOMATIC: dict[str, Any] = {"segment_bytes": 64 * 1024, "preallocate": False, "durability": "os"}
SMALL: dict[str, Any] = {**AUTOMATIC, "auto_rewrite_percentage": 0}
"""Only what a test asks for compacts: on a busy machine a log would compact itself before."""


def size(folder: Path) -> int:
    """Bytes of all files; some may be removed at the same time."""
    found = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                found += os.stat(os.path.join(place, name)).st_size
    return found


def overwrite(store: imap_wal.Store, times: int, keys: int = 100) -> dict[str, int]:
    orders = store.map("orders")
    for number in range(times):
        orders.update({f"k{key}": number * keys + key for key in range(keys)})
    return dict(orders.items())
