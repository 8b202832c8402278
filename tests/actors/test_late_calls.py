"""An actor is paused before one call, others finish in between, and the call comes late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imap_wal import format
from imap_wal.errors import ImapWalError
from imap_wal.settings import RecoveryMode
from imap_wal.store import Store
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.actors.test_named_cases import NODE, Interrupted, embedded
from tests.support import node_log, row


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


def test_a_point_in_time_takeover_of_objects_leaves_what_shuts_the_old_writer_out(tmp_path: Path) -> None:
    """It emptied the object under which the old writer would create its next commit: a copy with
    another name, and the name was free again."""
    store = LocalObjects(str(tmp_path))
    old = embedded(store)
    for number in range(5):
        old.map("m")[f"k{number}"] = number
    third = sorted(file.path for file in store.list(f"{NODE}/wal") if file.path.endswith(".wal"))[2]
    data = bytearray(store.read(third))
    data[-3] ^= 1
    store.replace(third, bytes(data))
    new = embedded(store, takeover=True, recovery_mode=RecoveryMode.POINT_IN_TIME)
    found = dict(new.map("m"))
    assert not acknowledged(old, "late", 1), "two writers acknowledge"
    new.archive()
    assert not acknowledged(old, "late", 1)
    new.close()
    with embedded(store) as again:
        assert dict(again.map("m")) == found == {"k0": 0, "k1": 1}


def test_a_session_whose_number_the_manifest_lost_is_not_given_again(memory: MemoryStore) -> None:
    """The node's manifest was put back from a copy of the same epoch. A plug-in then got the number
    of another one's session, and its first requests counted as in the log already."""
    log = node_log(memory)
    copy = {file.path: memory.read(file.path) for file in memory.list(f"{NODE}/manifest")}
    number = log.new_session("plug-in 1")
    log.write(format.ENTRIES, 1, [row("a", "1", request=7, session=number)])
    log.sync()
    for file in memory.list(f"{NODE}/manifest"):
        memory.delete(file.path)
    for path, data in copy.items():
        memory.create(path, data)
    again = node_log(memory, takeover=True)
    assert again.requests == {number: 7}
    assert again.new_session("plug-in 2") > number
