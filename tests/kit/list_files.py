"""Manifests with list files, and what must hold for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from imap_wal import layout
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.format import Position
from imap_wal.manifest import list_files, snapshots
from imap_wal.manifest.cluster import ClusterManifestLog
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.manifest.snapshots import LowWaterMark, Snapshot, SnapshotFile
from storage_backends import SegmentStore
from tests.support import FakeClock

FOLDER = "ns/c/nodes/n"


def short_lists(monkeypatch: pytest.MonkeyPatch, newest: int = 3, least: int = 4) -> None:
    """Lists of few archives. Readers accept any number."""
    monkeypatch.setattr(list_files, "NEWEST_MAX", newest)
    monkeypatch.setattr(list_files, "LIST_MIN", least)


def seeded(store: SegmentStore, seed: int) -> Context:
    return Context(store, clock=FakeClock(), randomness=SeededRandomness(seed))


def log_of(store: SegmentStore, seed: int = 1) -> NodeManifestLog:
    return NodeManifestLog(seeded(store, seed), FOLDER)


def archive(number: int) -> Archive:
    place = Position(1, number + 1, 64, 0)
    path = f"{FOLDER}/archive/m/{number}.parquet"
    return Archive("m", path, place, place._replace(index=9), 10, 1, 100, number)


def paths(manifest: NodeManifest) -> list[str]:
    return sorted(each.path for each in manifest.archives)


def listed(store: SegmentStore, folder: str = FOLDER) -> set[str]:
    """The names of the list files that are there."""
    files = store.list(layout.lists_folder(folder))
    return {layout.list_name_of(file.path) for file in files}


def check(store: SegmentStore) -> set[str]:
    """The newest manifest can be read whole, and no list is missing that a manifest from the floor
    on names. Returns the names of lists that may be there."""
    number, newest = log_of(store, 99).read()
    assert len({each.path for each in newest.archives}) == len(newest.archives)
    documents = [json.loads(store.read(file.path)) for file in store.list(f"{FOLDER}/manifest")]
    floor = next(each["floor"] for each in documents if each["number"] == number)
    named = {
        file["name"]
        for each in documents
        if each["number"] >= floor
        for file in each.get("lists", ())
    }
    there = listed(store)
    assert named <= there
    return named | {name for name in there if int(name[:10]) > number}


def lose(path: Path) -> None:
    path.unlink()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


CLUSTER = "ns/c"


def short_part_lists(monkeypatch: pytest.MonkeyPatch, most: int = 3, least: int = 4) -> None:
    """Lists of few files of snapshots, even for small snapshots."""
    monkeypatch.setattr(snapshots, "FILES_MAX", most)
    monkeypatch.setattr(list_files, "LIST_MIN", least)


def cluster_log(store: SegmentStore, seed: int = 1) -> ClusterManifestLog:
    return ClusterManifestLog(seeded(store, seed), CLUSTER)


def snapshot_of(parts: Mapping[int, int], generation: int = 1, name: str = "m") -> Snapshot:
    """A snapshot with a file for each key, which is its border; the value is in its name."""
    keys = sorted(parts)
    files = (
        SnapshotFile(
            f"{CLUSTER}/snapshot/{name}/{parts[key]:08d}/part-{key}.parquet",
            parts[key] * 1000 + key,
            100,
            number,
            f"{key:08x}",
            0,
        )
        for number, key in enumerate(keys)
    )
    return Snapshot(
        generation,
        Listed(files),
        {"n": LowWaterMark("d", Position(1, generation, 64, 0))},
        live=len(keys),
        tombstones=0,
        bytes=100 * len(keys),
        created_ms=generation,
    )


def parts_in(snapshot: Snapshot) -> dict[int, int]:
    """The inverse of `snapshot_of`."""
    found = {int(file.border, 16): int(file.path.split("/")[-2]) for file in snapshot.files}
    checksums = [file.checksum for file in snapshot.files]
    assert checksums == [value * 1000 + key for key, value in found.items()]
    assert [file.rows for file in snapshot.files] == list(range(len(found)))
    assert list(found) == sorted(found)
    return found


def check_parts(store: SegmentStore, folder: str = CLUSTER) -> set[str]:
    """No list of files is missing that a manifest of this folder names from its floor on. Returns
    the names of lists that may be there."""
    documents = [json.loads(store.read(file.path)) for file in store.list(f"{folder}/manifest")]
    newest = max(documents, key=lambda each: int(each["number"]))
    named: set[str] = set()
    for each in documents:
        if each["number"] >= newest["floor"]:
            bases = (each.get("base"), each.get("proposed"), *each.get("later", ()))
            for one in (each, *filter(None, bases)):
                named |= {file["name"] for files in one.get("lists", {}).values() for file in files}
    there = listed(store, folder)
    assert named <= there
    return named | {name for name in there if int(name[:10]) > newest["number"]}
