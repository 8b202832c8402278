"""Damage in the files of a log, and its repair by the command."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import imap_wal
from imap_wal import format
from imap_wal.context import Context
from imap_wal.inspect.inventory import looks_at
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import SALVAGE
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run

_numbers = itertools.count()
"""Stores in memory that have one name are one store in this process."""


def always(_: str) -> bool:
    return True


def repaired(store: SegmentStore, name: str, mode: str = SALVAGE) -> tuple[MemoryStore, list[Any]]:
    """A repaired copy in memory, and the items; a dry run before it reports the same."""
    plans = []
    target = MemoryStore(f"repaired-{name}-{next(_numbers)}")
    for dry_run in (True, False):
        views = looks_at(Context(store))
        items: list[Any] = []
        for view in views:
            repair = ClusterRepair(Context(store), view, mode, always, lambda _: None)
            repair.plan()
            items += [item.to_json() for item in repair.items]
            if not dry_run:
                repair.write(target)
        plans.append(items)
    assert plans[0] == plans[1]
    return target, plans[1]


def clean(run: Run, url: str) -> bool:
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0, ended.json["files"]
    return ended.json["summary"]["torn_tail"] == 0


def flip(path: Path, offset: int, bit: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def frames(path: Path) -> list[format.Frame]:
    store = open_store(str(path.parent))
    return list(SegmentReader(store, path.name).whole_frames())


def values(url: str) -> dict[str, Any]:
    with imap_wal.open(url, node="n1") as store:
        return dict(store.map("m"))


def repair(run: Run, tmp_path: Path, *words: str, code: int = 3) -> dict[str, Any]:
    dry = run("repair", tmp_path / "log", "--dry-run", "-o", "json", *words)
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/copy", "-o", "json", *words)
    assert (dry.code, ended.code) == (code, code), ended.err
    assert dry.json["files"] == ended.json["files"]
    same = {**ended.json["summary"], "dry_run": True, "to": None}
    assert dry.json["summary"] == same
    assert clean(run, f"{tmp_path}/copy")
    found: dict[str, Any] = ended.json
    return found


def damaged_file(found: dict[str, Any]) -> dict[str, Any]:
    (file,) = [file for file in found["files"] if file["status"] != "clean"]
    return dict(file)


def store_of(url: str) -> SegmentStore:
    return open_store(url)
