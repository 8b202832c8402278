"""Cases that were found by hand: two writers of one root or one log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imap_wal.embedded.store import Store
from imap_wal.errors import Fenced, ImapWalError, OutcomeUnknown
from storage_backends import NotFound, Unavailable
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import Interrupted, compact, embedded


@pytest.mark.parametrize("kind", ["append", "objects"])
def test_a_store_under_another_node_shuts_the_former_out(tmp_path: Path, kind: str) -> None:
    """C7: two hosts on one root both acknowledged, and a deleted key returned."""
    inner = LocalStore(str(tmp_path)) if kind == "append" else LocalObjects(str(tmp_path))
    first = embedded(inner, "host-a")
    first.map("m").update({"a": 1, "b": 1})
    with embedded(inner, "host-b", takeover=True) as second:
        del second.map("m")["a"]
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")["a"] = 2
        assert dict(second.map("m")) == {"b": 1}
    with embedded(inner, "host-a", takeover=True) as again:
        assert dict(again.map("m")) == {"b": 1}


def test_stores_that_ask_to_share_a_root_all_acknowledge(memory: MemoryStore) -> None:
    with embedded(memory, "n1", shared=True) as one, embedded(memory, "n2", shared=True) as two:
        one.map("m")["a"] = 1
        two.map("m")["b"] = 2
        one.map("m")["c"] = 3
    with embedded(memory, "n1") as again:
        assert dict(again.map("m")) == {"a": 1, "b": 2, "c": 3}


def test_a_segment_that_a_replaced_writer_begins_late_is_void(memory: MemoryStore) -> None:
    """Its successor had written nothing, so no segment of the successor showed that this one was
    late; and a deleted key returned."""
    slow = Interrupted(memory)
    first = embedded(slow, "a")
    first.map("m").update({"k": 1, "other": 1})
    first.archive()
    opened: list[Store] = []

    def replace_it() -> None:
        opened.append(embedded(memory, "b"))
        del opened[0].map("m")["k"]
        compact(memory)
        slow.when = lambda name, path: name == "create" and "/manifest/" in path
        slow.meanwhile = unavailable

    def unavailable() -> None:
        raise Unavailable("once")

    slow.when, slow.meanwhile = lambda name, path: name == "open_append", replace_it
    with pytest.raises(ImapWalError):
        first.map("m")["k"] = "late"
    opened[0].close()
    for node in ("b", "a"):
        with embedded(memory, node) as again:
            assert dict(again.map("m")) == {"other": 1}


class AppendsByName(LocalStore):
    """As on HDFS: an append writes to the file that has the name at that time."""

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Any:
        inner = super().open_append(path)
        store = self

        class ByName:
            def __init__(self) -> None:
                self.path, self.size = path, 0
                self.is_there = store.hold(path).is_there

            def append(self, *chunks: bytes) -> None:
                if not store.exists(path):
                    raise NotFound("no such file", path)
                with (Path(store.root) / path).open("r+b") as file:
                    file.seek(0, 2)
                    file.write(b"".join(chunks))
                self.size += sum(map(len, chunks))

            def sync(self) -> None: ...

            def truncate(self, size: int) -> None:
                store.truncate(path, size)
                self.size = size

            def close(self) -> None:
                inner.close()

        return ByName()


def test_a_late_append_does_not_reach_a_recovered_segment(tmp_path: Path) -> None:
    """C8: on HDFS, the append of a replaced writer was written into the recovered copy of the same
    name, and the next open raised ShortLog."""
    store = AppendsByName(str(tmp_path))
    old = embedded(store)
    old.map("m")["a"] = 1
    new = embedded(store, takeover=True)
    new.map("m")["b"] = 2
    with pytest.raises(ImapWalError):
        old.map("m")["late"] = 3
    new.close()
    for _ in range(2):
        with embedded(store) as again:
            assert dict(again.map("m")) == {"a": 1, "b": 2}
