"""How `open` fills the maps: changes of one node in the log's order, otherwise by a merge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.context import Context
from imap_wal.embedded import loading
from imap_wal.entry import clear_of, pack
from imap_wal.format import CLEARS
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.view import MaterializedView
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.serializer import MsgpackSerializer
from imap_wal.settings import Settings
from imap_wal.write.ring import CommitRequest
from storage_backends import NotFound
from storage_backends.memory import MemoryStore
from tests.support import FakeClock, contents, copy_files, embedded


class Other(MsgpackSerializer):
    name = "other"


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the clusters whose logs were merged."""
    found: list[str] = []

    class Counted(MaterializedView):
        def __init__(self, log: ClusterLog, *arguments: Any) -> None:
            found.append(log.cluster)
            super().__init__(log, *arguments)

    monkeypatch.setattr(loading, "MaterializedView", Counted)
    return found


def compact(store: MemoryStore) -> None:
    log = ClusterLog(Context(store), "default", "embedded")
    rewrite(log, LocalEngine(Settings()))
    prune(log)


def test_maps_of_one_node_are_filled_without_a_merge(
    memory: MemoryStore, merges: list[str]
) -> None:
    clock = FakeClock()
    with embedded(memory, clock=clock) as store:
        items, others = store.map("m"), store.map("others")
        items.update(dict.fromkeys(range(100), "snapshot"))
        others.update({number: number for number in range(100)})
    compact(memory)
    with embedded(memory, clock=clock) as store:
        items, others = store.map("m"), store.map("others")
        for number in range(0, 100, 2):
            items[number] = "archive"
            del others[number]
        items.put("short", 1, ttl=5)
        items.put("long", 1, ttl=50)
        items.put("again", 1, ttl=5)
        items["again"] = 2
        store.archive()
        for number in range(0, 100, 4):
            items[number] = "segment"
        others.clear()
        others["last"] = 1
        store.map("gone")["k"] = 1
        del store.map("gone")["k"]
        store.map("expired").put("k", 1, ttl=5)
        expected = {name: dict(store.map(name)) for name in ("m", "others")}
    clock.advance(10)
    del expected["m"]["short"]
    with embedded(memory, clock=clock) as store:
        assert store.maps() == ["m", "others"]
        assert {name: dict(store.map(name)) for name in store.maps()} == expected
        clock.advance(50)
        assert "long" not in store.map("m")
    assert merges == []


def test_logs_of_several_nodes_are_merged(tmp_path: Path, merges: list[str]) -> None:
    for node in ("n2", "n1", "n2"):
        with imap_wal.open(tmp_path, node=node) as store:
            store.map("m")["last"] = node
    with imap_wal.open(tmp_path, node="n1") as store:
        assert dict(store.map("m")) == {"last": "n2"}
    assert merges


def test_changes_of_a_forgotten_node_are_compared(memory: MemoryStore, merges: list[str]) -> None:
    """A snapshot has a newer change of another node than the log of the only one that is left."""
    first = imap_wal.open(memory.url, storage=memory, node="n1", shared=True)
    first.map("m")["k"] = "first"
    with imap_wal.open(memory.url, storage=memory, node="n2", shared=True) as second:
        second.map("m")["k"] = "second"
    compact(memory)
    log = ClusterLog(Context(memory), "default", "embedded")
    log.manifests.update(lambda found: _without(found, "n2"))
    first.map("m")["k"] = "older"
    first.close()
    merges.clear()
    assert contents(memory) == {"k": "second"}
    assert merges == ["embedded"]


def _without(manifest: ClusterManifest, node: str) -> ClusterManifest:
    left = {name: each for name, each in manifest.nodes.items() if name != node}
    return replace(manifest, nodes=left)


def test_archived_clear_deletes_older_entries_only(memory: MemoryStore, merges: list[str]) -> None:
    with embedded(memory) as store:
        items = store.map("m")
        items.update(dict.fromkeys(range(10), "old"))
        items.clear()
        items[3] = "new"
        store.archive()
        items[4] = "newer"
    assert contents(memory) == {3: "new", 4: "newer"}
    assert merges, "an archive has its entries in the order of their keys"


def test_clear_of_one_of_two_partitions_is_merged(memory: MemoryStore, merges: list[str]) -> None:
    """No release writes one into a store. It deletes only the keys of its partition."""
    with embedded(memory) as store:
        store.map("m", raw=True).update(
            {bytes((0, 0, 0, 2 + number)) + b"data": b"v" for number in range(40)}
        )
        clear = pack(clear_of("m", 0, 2, 1, (1, 0, 2**40, 1)))
        request = CommitRequest([clear], 1, kind=CLEARS, session=2**40, request=1)
        store.committer.submit(request)
        store.committer.wait(request)
        request.result()
    with embedded(memory) as store:
        assert len(store.map("m", raw=True)) == 20
    assert merges


def test_map_with_another_serializer_later_is_merged(
    memory: MemoryStore, merges: list[str]
) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
        del store.map("m")["a"]
    with embedded(memory) as store:
        store.map("m", serializer=Other())["b"] = 2
    with embedded(memory) as store:
        assert dict(store.map("m", serializer=Other())) == {"b": 2}
    assert merges


def test_reading_begins_again_if_a_file_is_removed(
    memory: MemoryStore, merges: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded(memory, segment_bytes=400) as store:
        for number in range(20):
            store.map("m")[number] = number
        del store.map("m")[0]
        store.committer.rotate()
    reads = 0

    def lost(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 3:
            compact(memory)
            raise NotFound("gone", arguments[1].path)
        return read_scan(*arguments)

    monkeypatch.setattr(loading, "read_scan", lost)
    with embedded(copy_files(memory)) as store:
        assert dict(store.map("m")) == {number: number for number in range(1, 20)}
    assert reads > 3
    assert merges == []


@pytest.mark.parametrize("kind", ["archive", "snapshot"])
def test_files_in_another_order_are_merged(
    memory: MemoryStore, merges: list[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A repair may take in files that later ones replaced, and sorts them by their names."""
    monkeypatch.setattr(part_writer, "PART_ROWS", 4)
    with embedded(memory, auto_rewrite_percentage=0) as store:
        for number in (1, 2):
            store.map("m").update(dict.fromkeys(range(9), number))
            if kind == "archive":
                store.archive()
    if kind == "snapshot":
        compact(memory)

    def reversed_scans(*arguments: Any, **options: Any) -> list[FileScan]:
        return cluster_scans(*arguments, **options)[::-1]

    monkeypatch.setattr(loading, "cluster_scans", reversed_scans)
    assert contents(memory) == dict.fromkeys(range(9), 2)
    assert merges


def test_files_that_a_repair_took_in_are_merged(memory: MemoryStore, merges: list[str]) -> None:
    """A lost manifest named them: they cover more of the log than the marks of the older one."""
    with embedded(memory) as store:
        store.map("m")["k"] = "snapshot"
    compact(memory)
    log = ClusterLog(Context(memory), "default", "embedded")

    def taken_in(manifest: ClusterManifest) -> ClusterManifest:
        snapshot = replace(manifest.snapshots["m"], mixed=True)
        return replace(manifest, snapshots={"m": snapshot})

    log.manifests.update(taken_in)
    assert contents(memory) == {"k": "snapshot"}
    assert merges
