"""Logs of which one node is forgotten."""

from __future__ import annotations

import imap_wal
from imap_wal.embedded.store import Store
from imap_wal.errors import ImapWalError
from storage_backends.memory import MemoryStore


def write(store: MemoryStore, node: str, **entries: int) -> None:
    with imap_wal.open("memory://", node=node, storage=store, preallocate=False) as opened:
        opened.map("m").update(entries)


def acknowledged(store: Store, key: str) -> bool:
    try:
        store.map("m")[key] = 1
    except ImapWalError:
        return False
    return True
