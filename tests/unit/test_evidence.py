"""Files that are newer than the manifest beside them: an open, verify and repair use one
function."""

from __future__ import annotations

import itertools

import pytest

from imap_wal import layout
from imap_wal.errors import CorruptLog
from imap_wal.format import Position
from imap_wal.inspect import older_manifests
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifest
from imap_wal.manifest.older import of_files
from imap_wal.manifest.snapshots import LowWaterMark, Snapshot
from imap_wal.read.state import NodeState
from imap_wal.segment.listing import sorted_out
from imap_wal.write.registration import demand_current
from storage_backends import StoredFile
from storage_backends.memory import MemoryStore
from tests.support import embedded

numbers = itertools.count(1)
NODE = "default/c/nodes/n1"
ARCHIVED = layout.archive_path(NODE, "m", Position(3, 1, 0, 0), Position(3, 4, 0, 0), 3, "aa")
MANIFEST = NodeManifest(
    directory="d",
    epoch=3,
    archived=(3, 4),
    newest=6,
    archives=Listed([Archive("m", ARCHIVED, Position(3, 1, 0, 0), Position(3, 4, 0, 0), 1, 0, 1)]),
)


@pytest.mark.parametrize(
    ("path", "newer"),
    [
        (layout.wal_path(NODE, 3, 5), False),
        (layout.wal_path(NODE, 4, 7), True),
        (layout.recovered_path(layout.wal_path(NODE, 3, 5), 3), False),
        (layout.recovered_path(layout.wal_path(NODE, 3, 5), 4), True),
        (layout.writer_path(NODE, 4, "aa"), False),
        (layout.writer_path(NODE, 5, "aa"), True),
        (layout.lost_path(NODE, 3, layout.wal_path(NODE, 2, 5)), False),
        (layout.lost_path(NODE, 4, layout.wal_path(NODE, 3, 5)), True),
        (ARCHIVED, False),
        (layout.archive_path(NODE, "m", Position(3, 1, 0, 0), Position(3, 4, 0, 0), 4, "bb"), True),
        (layout.archive_path(NODE, "m", Position(3, 5, 0, 0), Position(3, 5, 9, 0), 3, "cc"), True),
        (f"{NODE}/notes.txt", False),
    ],
)
def test_open_and_verify_agree_on_files_newer_than_manifest(path: str, newer: bool) -> None:
    file = StoredFile(path, 1, 0)
    in_wal = [file] if path.endswith((".wal", ".writer")) and "/wal/" in path else []
    wal = sorted_out(in_wal, MANIFEST.archived)
    found = of_files([file], MANIFEST, {each.name for each in wal.segments})
    assert bool(found.newer) == newer
    view = NodeState("n1", NODE, MANIFEST, wal, number=1, files=(file,))
    assert older_manifests.of_node(view, MANIFEST, ClusterManifest(), {}) == found
    store = MemoryStore(f"evidence-{next(numbers)}")
    store.create(path, b"x")
    if newer:
        with pytest.raises(CorruptLog, match="older than the files beside them"):
            demand_current(store.list(NODE), NODE, MANIFEST, wal)
    else:
        demand_current(store.list(NODE), NODE, MANIFEST, wal)
    store.close()


def test_manifest_older_than_a_quarantined_file_is_refused() -> None:
    """An open refuses a manifest older than a file that a later epoch put aside."""
    store = MemoryStore(f"evidence-{next(numbers)}")
    with embedded(store) as opened:
        opened.map("m")["k"] = 1
    folder = next(file.path for file in store.list("") if file.path.endswith(".wal")).partition(
        "/wal/"
    )[0]
    store.create(layout.lost_path(folder, 9, layout.wal_path(folder, 1, 1)), b"x")
    with pytest.raises(CorruptLog, match="epoch 9"):
        embedded(store)


def test_object_snapshot_before_its_manifest_is_no_evidence() -> None:
    """A snapshot of objects that the manifest does not name yet is no evidence. On an object store,
    the manifest names the newest segment of the last open."""
    mark = LowWaterMark("d", Position(3, 8, 0, 0))
    cluster = ClusterManifest(snapshots={"m": Snapshot(1, Listed(), {"n1": mark}, 0, 0, 0, 0)})
    for number, older in ((8, False), (7, True)):
        file = StoredFile(layout.wal_path(NODE, 3, number), 1, 0)
        wal = sorted_out([file], MANIFEST.archived)
        view = NodeState("n1", NODE, MANIFEST, wal, number=1, files=(file,))
        assert bool(older_manifests.of_node(view, MANIFEST, cluster, {}).newer) == older
