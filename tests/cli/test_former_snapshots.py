"""repair takes from whole former snapshots what the newest one has lost."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal.agent.membership.forget_node import forget_node
from imap_wal.embedded.store import Store
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.snapshots import PartitionVersions
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.ranges import borders_of
from imap_wal.rewrite.run import rewrite
from imap_wal.security.encryption_keys import NO_KEYS
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run
from tests.kit.actors import log_of
from tests.kit.effort import every, share
from tests.kit.repairs import damaged_file, repair, repaired, values
from tests.support import copy_files, overwrite

numbers = itertools.count(1)
SNAPSHOTS = "default/embedded/snapshot"


def opened(store: MemoryStore, **options: Any) -> Store:
    return imap_wal.open(store.url, node="n1", auto_rewrite_percentage=0, **options)


def snapshot_files(store: MemoryStore) -> dict[str, bytes]:
    return {file.path: store.read(file.path) for file in store.list(SNAPSHOTS)}


def put_back(store: MemoryStore, files: dict[str, bytes]) -> None:
    for path in files.keys() - snapshot_files(store).keys():
        store.create(path, files[path])


def newest_files(store: MemoryStore) -> list[str]:
    return list(log_of(store).manifest().snapshots["m"].paths)


def snapshot_items(items: list[Any]) -> list[Any]:
    return [item for item in items if item["kind"] == "snapshot"]


def test_a_former_snapshot_and_the_log_since_lose_nothing(memory: MemoryStore) -> None:
    """The history keeps the log above it."""
    with opened(memory, history_s=3600) as store:
        m = store.map("m")
        m.update({f"k{number}": number for number in range(9)})
        store.compact()
        m["k0"] = "changed"
        del m["k1"]
        m["new"] = 1
        store.compact()
    prune(log_of(memory))
    damaged = copy_files(memory)
    for path in newest_files(damaged):
        overwrite(damaged, path, b"damaged")
    copy, items = repaired(damaged, f"former-snapshots-history-{next(numbers)}")
    with opened(copy) as store:
        assert dict(store.map("m")) == {
            "k0": "changed",
            "new": 1,
            **{f"k{number}": number for number in range(2, 9)},
        }
    newest, former = snapshot_items(items)
    assert (newest["action"], newest["given_up"]) == ("given-up", None)
    assert "no change since then was removed" in newest["what"]
    assert (former["status"], former["action"]) == ("clean", "copied")


def test_only_changes_since_the_former_snapshot_are_lost(run: Run, tmp_path: Path) -> None:
    """The log between both snapshots is gone. The report says which changes are lost."""
    log, kept = tmp_path / "log", {}
    for number in range(3):
        with imap_wal.open(log, node="n1", auto_rewrite_percentage=0) as store:
            store.map("m").update({f"k{key}": number for key in range(9 - 3 * number)})
            if number == 1:
                store.map("m")["between"] = 1
            store.archive()
        if number < 2:
            assert run("rewrite", log).code == 0
            assert run("prune", log, "--yes").code == 0
            kept |= {path: path.read_bytes() for path in log.rglob("snapshot/m/*/*")}
    newest = max(kept, key=lambda path: path.parent.name)
    for path, content in kept.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if path != newest else b"damaged")
    found = repair(run, tmp_path)
    file = damaged_file(found)
    assert file["file"].endswith(newest.name) and file["given_up"]["records"] is None
    assert "are those of the former snapshot of map 'm' (generation 1, of 20" in file["what"]
    assert file["given_up"]["first"] < file["given_up"]["last"]
    assert "of node 'n1' are lost" in file["what"]
    lost = {"k3": 0, "k4": 0, "k5": 0}
    rest = {**{f"k{key}": 2 for key in range(3)}, **{f"k{key}": 0 for key in range(6, 9)}}
    assert values(f"{tmp_path}/copy") == {**lost, **rest}


@every(2)
@pytest.mark.parametrize("case", ["changed since", "covered", "covered twice"])
def test_changes_of_a_forgotten_log_are_reported_as_lost(memory: MemoryStore, case: str) -> None:
    """They were only in the damaged snapshot. The node has another log now, of the same name."""

    def changed(value: str) -> None:
        with opened(memory) as store:
            store.map("m")["key"] = value

    def covered_and_forgotten() -> None:
        rewrite(log_of(memory), LocalEngine())
        prune(log_of(memory))
        assert not forget_node(log_of(memory), "n1").refused

    changed("then")
    if case == "covered twice":
        covered_and_forgotten()
        changed("then")
    rewrite(log_of(memory), LocalEngine())
    former = snapshot_files(memory)
    if case == "changed since":
        changed("since")
    covered_and_forgotten()
    with opened(memory) as store:
        store.map("m")["other"] = 1
    rewrite(log_of(memory), LocalEngine())
    damaged = copy_files(memory)
    for path in snapshot_files(damaged).keys() - {*former, *newest_files(damaged)}:
        damaged.delete(path)
    put_back(damaged, former)
    overwrite(damaged, newest_files(damaged)[0], b"damaged")
    copy, items = repaired(damaged, f"former-snapshots-forgotten-{next(numbers)}")
    with opened(copy) as store:
        assert dict(store.map("m")) == {"key": "then", "other": 1}
    newest = snapshot_items(items)[0]
    if case == "changed since":
        assert newest["given_up"]["first"] < newest["given_up"]["last"]
        assert "of node 'n1' are lost" in newest["what"]
    else:
        assert newest["given_up"] is None, newest["what"]
        assert "no change since then was removed" in newest["what"]


def test_a_deleted_key_of_a_whole_file_stays_deleted(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the former snapshot, only the keys of the damaged file are taken."""
    with opened(memory) as store:
        store.map("m").update({f"k{number:02d}": number for number in range(12)})
        rewrite(log_of(memory), LocalEngine())
        monkeypatch.setattr(part_writer, "PART_ROWS", 4)
        former = snapshot_files(memory)
        del store.map("m")["k10"]
        store.map("m").update({f"k{number:02d}": -number for number in (1, 2, 9)})
        store.archive()
    rewrite(log_of(memory), LocalEngine())
    prune(log_of(memory))
    damaged = copy_files(memory)
    put_back(damaged, former)
    first, *others = newest_files(damaged)
    assert others
    overwrite(damaged, first, b"damaged")
    copy, items = repaired(damaged, f"former-snapshots-ranges-{next(numbers)}")
    with opened(copy) as store:
        found = dict(store.map("m"))
    assert found == {
        f"k{number:02d}": -number if number == 9 else number for number in range(12) if number != 10
    }
    assert snapshot_items(items)[0]["action"] == "given-up"


def test_a_map_that_was_dropped_since_stays_dropped(memory: MemoryStore) -> None:
    """A reader still has the snapshot before the drop."""
    with opened(memory, history_s=3600) as store:
        for turn in range(2):
            store.map("m")["dropped"] = turn
            store.compact()
    former = snapshot_files(memory)
    drop_map(log_of(memory), "m")
    with opened(memory) as store:
        store.map("m")["later"] = 1
    rewrite(log_of(memory), LocalEngine())
    damaged = copy_files(memory)
    for file in damaged.list("default/embedded/manifest")[:-1]:
        damaged.delete(file.path)
    put_back(damaged, former)
    overwrite(damaged, newest_files(damaged)[0], b"damaged")
    copy, _ = repaired(damaged, f"former-snapshots-dropped-{next(numbers)}")
    with opened(copy) as store:
        assert "dropped" not in store.map("m")


def test_the_log_counts_whatever_versions_its_entries_have(memory: MemoryStore) -> None:
    """The table of a snapshot is for entries above its marks. Below them, entries of an owner that
    was replaced later are valid; the copy left them out."""
    with opened(memory) as store:
        store.map("m").update({"a": 1, "b": 2})
    rewrite(log_of(memory), LocalEngine())

    def with_table(manifest: ClusterManifest) -> ClusterManifest:
        table = {1: PartitionVersions({0: (9, 0)})}
        snapshots = {"m": replace(manifest.snapshots["m"], versions=1)}
        return replace(manifest, snapshots=snapshots, versions=table)

    log_of(memory).manifests.update(with_table)
    damaged = copy_files(memory)
    overwrite(damaged, newest_files(damaged)[0], b"damaged")
    copy, _ = repaired(damaged, f"former-snapshots-versions-{next(numbers)}")
    with opened(copy) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2}


@settings(max_examples=share(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_lost_key_has_its_newest_or_former_value(seed: int) -> None:
    """Random changes, rewrites, prunes and damage. Keys of whole files have their newest value."""
    rng, memory = random.Random(seed), MemoryStore(f"former-snapshots-former-{next(numbers)}")
    keys = [f"k{number:02d}" for number in range(16)]
    states: dict[int, dict[str, int]] = {}
    files: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_writer, "PART_ROWS", rng.choice((3, 5, 100)))
        with opened(memory, history_s=rng.choice((0, 3600))) as store:
            m = store.map("m")
            for step in range(rng.randint(3, 12)):
                match rng.randint(0, 9):
                    case 0 | 1 | 2 | 3:
                        m.update(dict.fromkeys(rng.sample(keys, rng.randint(1, 16)), step))
                    case 4 | 5:
                        m.pop(rng.choice(keys), None)
                    case 6 if rng.random() < 0.3:
                        m.clear()
                    case 7 | 8:
                        store.archive()
                        store.compact()
                    case _:
                        rewrite(log_of(memory), LocalEngine())
                        if rng.random() < 0.7:
                            store.archive()
                            prune(log_of(memory))
                manifest = log_of(memory).manifest()
                states.setdefault(manifest.generation, dict(m))
                files |= snapshot_files(memory)
            final = dict(m)
    damaged = copy_files(memory)
    if rng.random() < 0.7:
        put_back(damaged, files)
    manifest = log_of(damaged).manifest()
    if "m" not in manifest.snapshots or not manifest.snapshots["m"].files:
        return
    lost, spans = _damage(rng, damaged, manifest)
    copy, items = repaired(damaged, f"former-snapshots-former-copy-{next(numbers)}")
    with opened(copy) as store:
        found = dict(store.map("m"))
        store.map("m")["new"] = 1
    said = " ".join(item["what"] for item in items if item["file"] in lost)
    former = re.search(r"\(generation (\d+),", said)
    then = states[int(former[1])] if former is not None else {}
    for key in keys:
        packed = msgpack.packb(key)
        is_lost = any(start <= packed and (end is None or packed < end) for start, end in spans)
        possible = [final.get(key)]
        if is_lost and "no change since then was removed" not in said:
            possible.append(then.get(key))
        assert found.get(key) in possible, (key, found.get(key), possible, said)
    rewrite(log_of(copy), LocalEngine())
    with opened(copy) as store:
        assert dict(store.map("m")) == {**found, "new": 1}


def _damage(
    rng: random.Random, store: MemoryStore, manifest: ClusterManifest
) -> tuple[set[str], list[tuple[bytes, bytes | None]]]:
    """The files that are damaged, and the keys that they have."""
    snapshot = manifest.snapshots["m"]
    lost = set(rng.sample(snapshot.paths, min(len(snapshot.paths), rng.randint(1, 2))))
    for path in lost:
        data = store.read(path)
        changed = rng.choice((b"", data[: len(data) // 2], data[:-9]))
        overwrite(store, path, changed)
    lowers = borders_of(snapshot, NO_KEYS)
    if lowers is None:
        return lost, [(b"", None)]
    spans = zip(snapshot.paths, lowers, [*lowers[1:], None], strict=True)
    return lost, [(lower, upper) for path, lower, upper in spans if path in lost]
