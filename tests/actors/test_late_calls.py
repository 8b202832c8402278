"""An actor is paused before one call, others finish in between, and the call comes late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal import layout
from imap_wal.errors import ImapWalError
from imap_wal.settings import RecoveryMode
from imap_wal.store import Store
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.actors.test_named_cases import NODE, Interrupted, embedded


def acknowledged(store: Store, key: str, value: Any) -> bool:
    try:
        store.map("m")[key] = value
    except ImapWalError:
        return False
    return True


def test_an_open_that_lost_its_race_long_ago_does_not_bring_the_permit_of_a_replaced_writer_back(memory: MemoryStore) -> None:
    """Two opened at one moment and were about to use the same epoch. The later of both made the
    permit of that epoch again, after a third had deleted it and shut its writer out."""
    with embedded(memory) as first:
        first.map("m")["a"] = 1
    writers: list[Store] = []
    paused = Interrupted(memory)

    def others() -> None:
        held = Interrupted(memory)
        writers.append(embedded(held, takeover=True))
        writers[0].map("m")["b"] = 1
        writers.append(embedded(memory, takeover=True))

    paused.when, paused.meanwhile = lambda name, path: name == "create" and path.endswith(".writer"), others
    with pytest.raises(ImapWalError):
        embedded(paused, takeover=True)
    assert not acknowledged(writers[0], "lost", 1), "two writers acknowledge"
    writers[1].map("m")["c"] = 1
    writers[1].close()
    with embedded(memory) as again:
        assert dict(again.map("m")) == {"a": 1, "b": 1, "c": 1}
