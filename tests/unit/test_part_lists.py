"""Files of snapshots in list files: nothing that a manifest names is lost, whatever fails, whoever
else publishes at the same time, and however slow a reader is."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from imap_wal import layout
from imap_wal.errors import CorruptLog, ShortLog
from imap_wal.format import Position
from imap_wal.manifest import cluster as cluster_module
from imap_wal.manifest import list_files, readers
from imap_wal.manifest import snapshots as snapshots_module
from imap_wal.manifest import store as manifest_store
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.list_files import ListFile
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Reader
from imap_wal.manifest.snapshots import Snapshot, SnapshotTable
from storage_backends import NotFound, StorageError
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.kit.actors import Interrupted
from tests.kit.effort import every, share
from tests.kit.list_files import (
    CLUSTER,
    check_parts,
    cluster_log,
    listed,
    parts_in,
    seeded,
    short_part_lists,
    snapshot_of,
)

KEEP = 8
State = dict[str, dict[int, int]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    short_part_lists(monkeypatch)
    monkeypatch.setattr(manifest_store, "KEEP", KEEP)


def put(log: ClusterManifestLog, generation: int = 1, **maps: Mapping[int, int]) -> ClusterManifest:
    """Publish new snapshots of these maps, as a rewrite does."""

    def change(now: ClusterManifest) -> ClusterManifest:
        for name, parts in maps.items():
            now = now.with_snapshot(name, snapshot_of(parts, generation, name))
        return now

    return log.update(change)


def beat(log: ClusterManifestLog) -> ClusterManifest:
    """An update of something else."""
    return log.update(lambda now: replace(now, incarnation=now.incarnation + 1))


def state_of(manifest: ClusterManifest) -> State:
    return {name: parts_in(snapshot) for name, snapshot in manifest.snapshots.items()}


def lists_in(manifest: ClusterManifest, name: str = "m") -> tuple[ListFile, ...]:
    return manifest.snapshots[name].files.lists


def document_of(store: Any, folder: str = CLUSTER) -> dict[str, Any]:
    path = max(file.path for file in store.list(f"{folder}/manifest"))
    found: dict[str, Any] = json.loads(store.read(path))
    return found


def test_the_manifest_names_lists_only_of_large_maps(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = dict.fromkeys(range(30), 1), {1: 1, 2: 1}
    put(cluster_log(memory), m=large, small=small)
    found = cluster_log(memory, 2).read()[1]
    assert state_of(found) == {"m": large, "small": small}
    assert [each.items for each in lists_in(found)] == [4, 4, 4, 5, 4, 4, 5]
    assert found.snapshots["small"].files.lists == ()
    document = document_of(memory)
    assert (document["format"], list(document["lists"])) == (8, ["m"])
    assert document["snapshots"]["m"]["files"] == []
    monkeypatch.setattr(list_files, "unpacked", None)
    log = cluster_log(memory, 3)
    store = FaultyStore(memory)
    log = cluster_log(store, 3)
    beat(log)
    put(log, 2, small={3: 2})
    put(log, 3, another={3: 3})
    log.update(lambda now: now.with_loss("n"))
    assert not [each for each in store.operations if layout.list_number(each.path)]


def test_a_small_log_looks_as_before(memory: MemoryStore) -> None:
    put(cluster_log(memory), m={1: 1, 2: 1})
    assert {"lists", "dropped_lists"}.isdisjoint(document_of(memory))
    assert len(document_of(memory)["snapshots"]["m"]["files"]) == 2


def test_a_rewrite_of_one_range_writes_one_list(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes as much with 30,000 files as with 3,000, and reads no list again."""
    monkeypatch.undo()
    for count in (3_000, 30_000):
        store = FaultyStore(MemoryStore(f"{memory.url[9:]}-{count}"))
        log = cluster_log(store)
        parts = dict.fromkeys(range(count), 1)
        put(log, m=parts)
        before = store.count
        put(log, 2, m={**parts, 1500: 2})
        beat(log)
        done = store.operations[before:]
        written = [each.path for each in done if each.kind == "create"]
        assert sum(bool(layout.list_number(path)) for path in written) == 1
        assert not [each for each in done if each.kind == "read" and layout.list_number(each.path)]
        assert len(store.inner.read(max(path for path in written if "/manifest/" in path))) < 9_000
        assert state_of(cluster_log(store, 2).read()[1])["m"][1500] == 2


@every(3)
@pytest.mark.parametrize("seed", range(share(8, ci=40)))
def test_random_rewrites_against_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers rewrite, drop and add maps. Operations fail before or after they are done, and
    processes die. Readers keep manifests, and read their lists later: they find the state of that
    manifest, or it is older than those that are kept."""
    if seed % 2:
        monkeypatch.setattr(cluster_module, "TABLE_FROM", 3)
    chosen = random.Random(seed)
    inner = MemoryStore(f"part-lists-{seed}")
    expected: State = {}
    logs = [cluster_log(inner, seed * 10 + at) for at in range(2)]
    slow: list[tuple[int, ClusterManifest, State]] = []
    for step in range(1, 200):
        at = chosen.randrange(2)
        wanted = {name: dict(parts) for name, parts in expected.items()}
        for name in chosen.sample("abcd", chosen.choice((0, 1, 1, 2))):
            wanted[name] = _rewritten(chosen, wanted.get(name, {}), step)
        if chosen.random() < 0.4:
            fault = Fault(
                chosen.choice(("kill", "error")),
                at=chosen.randrange(1, 14),
                when=chosen.choice(("before", "after")),
            )
            logs[at] = cluster_log(FaultyStore(inner, Plan((fault,), seed)), seed * 10_000 + step)
        outcomes = [wanted]
        try:
            changed = {name: parts for name, parts in wanted.items() if parts != expected.get(name)}
            put(logs[at], step, **changed)
            beat(logs[at])
        except (StorageError, Killed):
            outcomes = [wanted, expected]
            logs[at] = cluster_log(inner, seed * 10_000 + step + 5_000)
        number, found = cluster_log(inner, 99).read()
        expected = state_of(found)
        assert expected in outcomes, f"seed {seed}, step {step}"
        check_parts(inner)
        slow.append((number, cluster_log(inner, 98).read()[1], expected))
        number, old, state = slow.pop(chosen.randrange(len(slow)))
        try:
            assert state_of(old) == state
        except NotFound:
            assert number < document_of(inner)["floor"]
    put(cluster_log(inner, seed), 1000, a=dict.fromkeys(range(40), 7))
    assert listed(inner, CLUSTER) <= check_parts(inner), f"seed {seed}"
    count = len(cluster_log(inner, 3).read()[1].snapshots["a"].files)
    assert all(
        list_files.LIST_MIN <= each.items < 2 * list_files.LIST_MIN
        for each in lists_in(cluster_log(inner, 3).read()[1], "a")
    ), count


def _rewritten(chosen: random.Random, parts: dict[int, int], step: int) -> dict[int, int]:
    """As a rewrite changes a map: some ranges are replaced, by more or fewer files."""
    kind = chosen.random()
    if kind < 0.1:
        return {}
    if kind < 0.25:
        return dict.fromkeys(chosen.sample(range(200), chosen.randrange(60)), step)
    first = chosen.randrange(200)
    last = first + chosen.choice((1, 1, 2, 10, 60))
    kept = {key: value for key, value in parts.items() if not first <= key < last}
    new = [key for key in range(first, last) if chosen.random() < 0.5]
    return dict(sorted({**kept, **dict.fromkeys(new, step)}.items()))


@pytest.mark.parametrize("times", [1, 6, KEEP + 8])
def test_another_writer_publishes_between_any_two_calls(memory: MemoryStore, times: int) -> None:
    """No file of either writer is lost: also if the other one sweeps the lists of this one before
    it publishes them, or deletes all manifests that it has read."""
    before = dict.fromkeys(range(20), 1)

    def begin(name: str) -> tuple[MemoryStore, Interrupted]:
        store = MemoryStore(f"{memory.url[9:]}-{name}")
        put(cluster_log(store), m=before, other={1: 1})
        return store, Interrupted(store)

    def others(store: Any) -> None:
        log = cluster_log(store, 50)
        for each in range(times):
            put(log, 2 + each, other=dict.fromkeys(range(each, each + 9), each))

    _, counted = begin("count")
    after = {**before, 4: 9, 50: 9}
    put(cluster_log(counted, 2), 9, m=after)
    for at in range(counted.calls):
        store, slow = begin(f"at-{at}")
        slow.at, slow.meanwhile = at, lambda store=store: others(store)
        try:
            put(cluster_log(slow, 2), 9, m=after)
        except NotFound:  # its manifest was replaced 64 times, so its lists are gone: try again
            assert times > KEEP
            put(cluster_log(store, 3), 9, m=after)
        last = dict.fromkeys(range(times - 1, times + 8), times - 1)
        assert state_of(cluster_log(store).read()[1]) == {"m": after, "other": last}, at
        check_parts(store)


def test_a_slow_reader_finds_its_files(memory: MemoryStore) -> None:
    """A manifest that is kept keeps its lists. After 64 others, a reader must read again."""
    log = cluster_log(memory, 2)
    put(log, m=dict.fromkeys(range(20), 1))
    _, old = cluster_log(memory, 3).read()
    late = replace(cluster_log(memory, 4).read()[1])
    for each in range(KEEP):
        put(log, 2 + each, m=dict.fromkeys(range(20), 2 + each))
    assert state_of(old) == {"m": dict.fromkeys(range(20), 1)}
    for each in range(3):
        put(log, 20 + each, m=dict.fromkeys(range(20), 20 + each))
    with pytest.raises(NotFound):
        state_of(late)
    assert len(listed(memory, CLUSTER)) <= 5 * (KEEP + 1)


def test_a_missing_and_a_damaged_list_are_named(memory: MemoryStore) -> None:
    found = put(cluster_log(memory), m=dict.fromkeys(range(20), 1))
    first, second = lists_in(found)[:2]
    path = layout.list_path(CLUSTER, first.name)
    whole = memory.read(path)
    memory.delete(path)
    with pytest.raises(ShortLog, match=f"{path} at byte 0: this list of {first.items} parts"):
        state_of(cluster_log(memory).read()[1])
    memory.create(path, whole)
    other = layout.list_path(CLUSTER, second.name)
    text = memory.read(other)
    memory.replace(other, text[:50] + bytes([text[50] ^ 1]) + text[51:])
    with pytest.raises(CorruptLog, match=f"{other} at byte 0: .* checksum in the manifest"):
        state_of(cluster_log(memory).read()[1])
    beat(cluster_log(memory, 2))
    put(cluster_log(memory, 3), 2, another=dict.fromkeys(range(9), 2))
    with pytest.raises(CorruptLog):
        put(cluster_log(memory, 4), 3, m=dict.fromkeys(range(20), 3))
    put(cluster_log(memory, 5), 4, m={})  # a drop needs no list
    assert state_of(cluster_log(memory).read()[1])["m"] == {}


def test_lists_of_another_log_are_written_again(memory: MemoryStore) -> None:
    found = put(cluster_log(memory), m=dict.fromkeys(range(20), 1))
    other = ClusterManifestLog(seeded(memory, 7), "ns/other")
    assert other.publish(0, found)
    there = other.read()[1]
    assert state_of(there) == state_of(found)
    assert {each.name for each in lists_in(there)} == listed(memory, "ns/other")
    assert {each.name for each in lists_in(there)}.isdisjoint(listed(memory, CLUSTER))


def test_snapshots_are_compared_without_reading_lists(memory: MemoryStore) -> None:
    put(cluster_log(memory), m=dict.fromkeys(range(20), 1))
    store = FaultyStore(memory)
    one, other = cluster_log(store).read()[1], cluster_log(store, 2).read()[1]
    assert one == other and len(one.snapshots["m"].files) == 20
    assert one.snapshots["m"].files == other.snapshots["m"].files
    assert not [each for each in store.operations if layout.list_number(each.path)]
    plain = snapshot_of(dict.fromkeys(range(20), 1))
    assert one.snapshots["m"] == plain
    assert one.snapshots["m"] != snapshot_of({**dict.fromkeys(range(20), 1), 3: 2})
    assert pickle.loads(pickle.dumps(one.snapshots["m"])) == plain
    assert not pickle.loads(pickle.dumps(one.snapshots["m"])).files.lists


def test_many_maps_are_copied_without_parsing(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "TABLE_FROM", 3)
    maps = {f"m{number}": dict.fromkeys(range(number, number + 9), 1) for number in range(5)}
    put(cluster_log(memory), 1, **maps)
    store = FaultyStore(memory)
    log = cluster_log(store, 2)
    assert isinstance(log.read()[1].snapshots, SnapshotTable)
    with monkeypatch.context() as unparsed:
        unparsed.setattr(snapshots_module, "unpacked", None)
        for _ in range(KEEP):
            beat(log)
    assert not [each for each in store.operations if layout.list_number(each.path)]
    check_parts(memory)
    assert state_of(cluster_log(memory, 3).read()[1]) == maps
    sent = pickle.loads(pickle.dumps(cluster_log(memory, 4).read()[1]))  # to a Spark worker
    assert state_of(sent) == maps and not sent.snapshots["m1"].files.lists


# ---- readers ----


def base_of(snapshot: Snapshot) -> Base:
    return Base({"n": Position(1, 1, 64, 0)}, {}, {"m": snapshot}, {})


READER = f"{layout.readers_folder(CLUSTER)}/r"


def test_a_base_has_lists_of_its_own(memory: MemoryStore) -> None:
    """What a reader needs is not deleted by publications of the cluster's manifest. An update of
    its positions writes no list, and a new base only those that differ."""
    log = cluster_log(memory)
    parts = dict.fromkeys(range(40), 1)
    current = put(log, m=parts).snapshots["m"]
    store = FaultyStore(memory)
    reader = Reader(seeded(store, 3), CLUSTER, "r")
    reader.begin({})
    base = base_of(current)
    reader.propose(base)
    reader.advance({}, base)
    first = listed(memory, READER)
    assert len(first) == len(lists_in(log.read()[1]))
    for each in range(2 * KEEP):
        put(log, 2 + each, m=dict.fromkeys(range(40), 2 + each))
        reader.advance({"n": Position(1, 2 + each, 64, 0)}, reader.read().base)
    written = [each.path for each in store.operations if each.kind == "create"]
    assert sum(bool(layout.list_number(path)) for path in written) == len(first)
    kept = readers.readers_of(memory, CLUSTER)["r"].base
    assert kept is not None and parts_in(kept.snapshots["m"]) == parts
    changed = {**parts, 20: 77}
    proposed = put(log, 77, m=changed).snapshots["m"]
    reader.propose(base_of(proposed))
    assert len(listed(memory, READER) - first) == 1
    state = readers.readers_of(memory, CLUSTER)["r"]
    assert [parts_in(each.snapshots["m"]) for each in state.bases] == [parts, changed]
    assert set(dict(state.kept_files(log.read()[1]))) == {*current.paths, *proposed.paths}
    check_parts(memory, READER)
    reader.advance({}, base_of(proposed))
    for each in range(2 * KEEP):
        reader.advance({"n": Position(2, 2 + each, 64, 0)}, reader.read().base)
    reader.advance({}, base_of(put(log, 78, m={**changed, 2: 78}).snapshots["m"]))
    assert len(listed(memory, READER)) == len(first) + 1, "with that of the base before"
    check_parts(memory, READER)
    assert readers.forget(seeded(memory, 4), CLUSTER, "r")
    assert not listed(memory, READER)


def test_a_reader_is_forgotten_between_any_two_calls(memory: MemoryStore) -> None:
    """Then its lists are deleted while the next base is compared with them."""
    parts = dict.fromkeys(range(40), 1)
    current = put(cluster_log(memory), m=parts).snapshots["m"]
    other = put(cluster_log(memory), 2, m={**parts, 20: 2}).snapshots["m"]

    def begin(name: str) -> tuple[MemoryStore, Interrupted]:
        store = MemoryStore(f"{memory.url[9:]}-{name}")
        reader = Reader(seeded(store, 3), CLUSTER, readers.HISTORY)
        reader.keep(lambda _: (base_of(current),), 0)
        return store, Interrupted(store)

    def advance(store: Any) -> None:
        reader = Reader(seeded(store, 5), CLUSTER, readers.HISTORY)
        reader.keep(lambda bases: (*bases, base_of(other)), 0)

    def forget(store: MemoryStore) -> None:
        readers.forget(seeded(store, 4), CLUSTER, readers.HISTORY)

    _, counted = begin("count")
    advance(counted)
    assert counted.calls > 10
    for at in range(counted.calls):
        store, slow = begin(f"at-{at}")
        slow.at, slow.meanwhile = at, lambda store=store: forget(store)
        advance(slow)
        kept = readers.bases_of_history(store, CLUSTER)
        found = [parts_in(base.snapshots["m"]) for base in kept]
        assert found in ([], [{**parts, 20: 2}], [parts, {**parts, 20: 2}]), at


def test_bases_of_the_history_share_lists(memory: MemoryStore) -> None:
    log = cluster_log(memory)
    reader = Reader(seeded(memory, 3), CLUSTER, readers.HISTORY)
    states = []
    for each in range(1, 6):
        states.append({**dict.fromkeys(range(40), 1), each * 3: each})
        new = base_of(put(log, each, m=states[-1]).snapshots["m"])
        kept = reader.keep(lambda bases, new=new: (*bases, new), 1000)
        assert [parts_in(base.snapshots["m"]) for base in kept] == states
        assert reader.keep(lambda bases: bases, 1000) == kept
    folder = f"{layout.readers_folder(CLUSTER)}/{readers.HISTORY}"
    assert len(listed(memory, folder)) < 10 + 3 * 5
    check_parts(memory, folder)
    found = readers.bases_of_history(memory, CLUSTER)
    assert [parts_in(base.snapshots["m"]) for base in found] == states


@pytest.mark.parametrize("name", ["../../../x", "0000000001-", "1-ab", "0000000001-ab\n"])
def test_a_list_with_another_name_is_refused(memory: MemoryStore, name: str) -> None:
    put(cluster_log(memory), m=dict.fromkeys(range(20), 1))
    document = document_of(memory)
    document["lists"]["m"][0]["name"] = name
    with pytest.raises(ValueError, match=r"pattern|regex"):
        ClusterManifest.from_json(document)


def test_lists_that_fit_no_snapshot_are_refused(memory: MemoryStore) -> None:
    put(cluster_log(memory), m=dict.fromkeys(range(20), 1), small={1: 1})
    document = document_of(memory)
    for name in ("small", "unknown"):
        lists = {name: document["lists"]["m"]}
        with pytest.raises(ValueError, match=f"lists of map '{name}' do not fit"):
            ClusterManifest.from_json({**document, "lists": lists})
