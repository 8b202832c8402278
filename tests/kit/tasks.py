"""Stores of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import imap_wal


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 60))


def aopen(store: Any, **options: Any) -> Awaitable[imap_wal.AsyncStore]:
    return imap_wal.aopen(
        "memory://x",
        node="n1",
        storage=store,
        **{"preallocate": False, "segment_bytes": 64 * 1024, **options},
    )
