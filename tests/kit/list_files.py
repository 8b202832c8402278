"""Manifests with list files, and what must hold for them."""

from __future__ import annotations

import json

import pytest

from imap_wal import layout
from imap_wal.clock import SeededRandomness
from imap_wal.format import Position
from imap_wal.manifest import list_files
from imap_wal.manifest.archives import Archive
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from storage_backends import SegmentStore
from tests.support import FakeClock

FOLDER = "ns/c/nodes/n"


def short_lists(monkeypatch: pytest.MonkeyPatch, newest: int = 3, least: int = 4) -> None:
    """Lists of few archives. Readers accept any number."""
    monkeypatch.setattr(list_files, "NEWEST_MAX", newest)
    monkeypatch.setattr(list_files, "LIST_MIN", least)


def log_of(store: SegmentStore, seed: int = 1) -> NodeManifestLog:
    return NodeManifestLog(store, FOLDER, FakeClock(), SeededRandomness(seed))


def archive(number: int) -> Archive:
    place = Position(1, number + 1, 64, 0)
    path = f"{FOLDER}/archive/m/{number}.parquet"
    return Archive("m", path, place, place._replace(index=9), 10, 1, 100, number)


def paths(manifest: NodeManifest) -> list[str]:
    return sorted(each.path for each in manifest.archives)


def listed(store: SegmentStore) -> set[str]:
    """The names of the list files that are there."""
    files = store.list(layout.lists_folder(FOLDER))
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
