"""Sequences of crashes and of files restored from a copy, found by attacking the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
import imap_wal.log
from imap_wal.agent.config import AgentConfig
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.agent.open_log import OpenLog
from imap_wal.context import Context
from imap_wal.embedded.store import Store
from imap_wal.errors import CorruptLog, InvalidSetting, LostRace
from imap_wal.inspect.inventory import looks_at
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import SALVAGE
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.kit.actors import NODE, Interrupted, compact, embedded, log_of


class Died(BaseException):
    """The process ended at this call."""


class Dying:
    """A storage of a process that ends at its first call that `when` chooses. Locks are not
    kept."""

    def __init__(self, inner: SegmentStore, when: Any) -> None:
        self._inner, self._when = inner, when
        self.capabilities, self.url = inner.capabilities, inner.url
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args: Any, **options: Any) -> Any:
            self._dead |= self._when(name, args[0] if args and isinstance(args[0], str) else "")
            if self._dead:
                raise Died(name)
            return method(*args, **options)

        return call


def test_a_third_open_succeeds_after_two_that_died(tmp_path: Path) -> None:
    """On objects, the second one created an empty segment that fences the first one. It looked like
    a segment of another log, which is refused."""
    store = LocalObjects(str(tmp_path))
    with embedded(store, "n2", shared=True) as other, embedded(store, "n1", shared=True) as lost:
        other.map("m")["kept"] = lost.map("m")["lost"] = 1
    for file in store.list(NODE):
        store.delete(file.path)
    options = {"shared": True, "takeover": True, "recovery_policy": "partial"}
    for _ in range(2):
        registers = Dying(
            store,
            lambda name, path: name == "create" and path.startswith("default/embedded/manifest/"),
        )
        with pytest.raises(Died):
            embedded(registers, "n1", **options)
    with embedded(store, "n1", **options) as again:
        assert dict(again.map("m")) == {"kept": 1}
        again.map("m")["new"] = 1
    with embedded(store, "n1", shared=True) as again:
        assert dict(again.map("m")) == {"kept": 1, "new": 1}


def repaired(store: SegmentStore, target: Path) -> dict[str, Any]:
    """The contents of map "m" in a repaired copy."""
    views = looks_at(Context(store))
    copy = LocalObjects(str(target))
    for view in views:
        repair = ClusterRepair(Context(store), view, SALVAGE, lambda _: True, lambda _: None)
        repair.plan()
        repair.write(copy)
    with embedded(copy, "n1") as found:
        return dict(found.map("m"))


def test_a_repair_reads_archives_after_an_older_object(tmp_path: Path) -> None:
    """The newest manifests are damaged. An object of an earlier epoch is kept to fence its writer.
    The repair took it as a sign that segments still had the entries of the archives, and left the
    archives out."""
    store = LocalObjects(str(tmp_path / "log"))
    with embedded(store, "n1") as first:
        first.map("m").update({"a": 1, "b": 2})
        first.archive()
        first.map("m")["c"] = 3
    compact(store)
    opened = {file.path for file in store.list(f"{NODE}/manifest")}
    with embedded(store, "n1") as second:
        opened |= {file.path for file in store.list(f"{NODE}/manifest")}
        second.map("m")["d"] = 4
        second.map("m")["e"] = 5
        second.archive()
        second.map("m")["f"] = 6
    for file in store.list(f"{NODE}/manifest"):
        if file.path not in opened:
            store.replace(file.path, b"damaged")
    assert repaired(store, tmp_path / "copy") == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}


def test_an_older_node_below_a_snapshot_is_refused(tmp_path: Path) -> None:
    """On objects, the open itself created the missing object, to fence the old writer, and only
    then looked whether the log reaches as far as the snapshot."""
    store = LocalObjects(str(tmp_path))
    with embedded(store, "n1") as first:
        first.map("m")["a"] = 1
    writer = embedded(store, "n1")
    older = {
        file.path: store.read(file.path)
        for file in store.list(NODE)
        if "writer.lock" not in file.path
    }
    writer.map("m")["b"] = 2
    compact(store)
    writer.map("m")["lost"] = 3
    for file in store.list(NODE):
        if "writer.lock" not in file.path:
            store.delete(file.path)
    for path, data in older.items():
        store.create(path, data)
    for _ in range(2):
        with pytest.raises(CorruptLog, match="a snapshot covers node 'n1' up to"):
            embedded(store, "n1", takeover=True)


def test_a_slow_forget_node_leaves_a_new_log_alone(memory: MemoryStore) -> None:
    """It took over the log that had replaced the forgotten one, and marked it as forgotten: the log
    could not be opened again, and its acknowledged entries could not be read."""
    with embedded(memory, "n2", shared=True) as other, embedded(memory, "n1", shared=True) as old:
        other.map("m")["a"] = old.map("m")["gone"] = 1
    new: list[Store] = []

    def forgotten_and_begun_again() -> None:
        forget_node(log_of(memory), "n1", lose=True)
        new.append(embedded(memory, "n1", shared=True))
        new[0].map("m")["b"] = 2

    slow = Interrupted(memory)
    slow.when, slow.meanwhile = lambda name, path: name == "lock", forgotten_and_begun_again
    with pytest.raises(LostRace):
        forget_node(log_of(slow), "n1", lose=True)
    new[0].map("m")["c"] = 3
    new[0].close()
    with embedded(memory, "n1", shared=True) as again:
        assert dict(again.map("m")) == {"a": 1, "b": 2, "c": 3}


def test_an_open_does_not_recreate_a_forgotten_node(memory: MemoryStore) -> None:
    """The node was forgotten meanwhile. The open was about to fence its writer, and began a new
    log under its name."""
    with embedded(memory, "n2", shared=True) as other:
        other.map("m")["a"] = 1
    embedded(memory, "n1", shared=True)  # its process died
    slow = Interrupted(memory)
    slow.when = lambda name, path: name == "lock" and path.startswith(NODE)
    slow.meanwhile = lambda: forget_node(log_of(memory), "n1", lose=True)
    with embedded(slow, "n2") as opened:
        assert dict(opened.map("m")) == {"a": 1}
    assert log_of(memory).nodes() == ["n2"]


def test_a_log_of_records_cannot_be_opened_for_maps(memory: MemoryStore, tmp_path: Path) -> None:
    """Its writer was fenced, and entries of maps were written after its records."""
    with imap_wal.log.create("memory://", storage=memory, preallocate=False) as log:
        log.append("m", (b"key", b"a record"))
        before = [file.path for file in memory.list("")]
        with pytest.raises(InvalidSetting, match="is a log of records"):
            imap_wal.open("memory://", cluster="log", node="log", storage=memory, takeover=True)
        config = AgentConfig(
            url="memory://", cluster="log", node="log", endpoint=f"ipc://{tmp_path}/agent"
        )
        with pytest.raises(InvalidSetting, match="is a log of records"):
            OpenLog(config, ClusterLog(Context(memory), "default", "log"), takeover=True)
        assert [file.path for file in memory.list("")] == before
        log.append("m", (b"key", b"another"))
