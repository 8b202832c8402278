"""The tables about a log say what its manifests say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imap_wal.context import Context
from imap_wal.errors import InvalidSetting
from imap_wal.format import START
from imap_wal.inspect.inventory import take_inventory
from imap_wal.manifest.reader_manifest import Base
from imap_wal.manifest.readers import Reader
from imap_wal.read.scan_list import cluster_scans
from imap_wal.retention.archive import archive_sealed
from imap_wal.retention.history import keep_history
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal.metadata_tables import MetadataReader
from pyspark_imap_wal.options import Options
from storage_backends import SegmentStore, open_store
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node
from tests.kit.spark_reads import read
from tests.support import FakeClock

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    """Node n1 has archives that a snapshot covers and others, and a segment; n2 was closed."""
    store = open_store(str(tmp_path / "log"))
    log = node(store)
    other = node(store, "n2")
    append(other, put("b", 1, (1, 1, 2, 1)))
    other.close()
    for number in range(3):
        append(log, put(f"k{number}", number, (1, 1, 1, 2 * number)))
        append(log, put("x", None, (1, 1, 1, 2 * number + 1), "other"))
        log.rotate()
        if number != 1:
            archive_sealed(
                Context(store), log.identity.node_folder, "n1", log.manifests, writing=log.unsealed
            )
        if number == 0:
            rewrite(cluster(store), LocalEngine(SMALL), skew_ms_max=2**60)
    append(log, put("last", 1, (1, 1, 1, 99)))
    return store


def lines(root: Path, table: str, **options: str) -> list[dict[str, Any]]:
    return read(root / "log", table=table, **options)


def test_files_are_those_that_a_reader_reads(tmp_path: Path, store: Any) -> None:
    listed = lines(tmp_path, "files")
    (state,) = [cluster(store).state()]
    scans = {scan.path: scan for scan in cluster_scans(state, covered=True)}
    assert {line["path"] for line in listed if line["state"] in ("current", "covered")} == {*scans}
    for line in listed:
        scan = scans.get(line["path"])
        if scan is None:
            continue
        assert (line["kind"], line["bytes"]) == (scan.kind, scan.bytes)
        assert (line["node"] or "", line["map"] or "") == (scan.node, scan.map)
        if scan.kind == "archive":
            assert (line["first_position"], line["last_position"]) == (
                str(state.marked(scan.node, scan.first)),
                str(state.marked(scan.node, scan.last)),
            )
        if scan.kind != "segment":
            assert (line["rows"], line["checksum"]) == (scan.records, scan.checksum)
    kinds = [line["kind"] for line in listed]
    assert {*kinds} == {"segment", "archive", "snapshot"}
    assert {line["state"] for line in listed} >= {"current", "covered"}
    assert {line["map"] for line in lines(tmp_path, "files", map="other")} == {"other"}


def test_snapshots_have_their_marks(tmp_path: Path, store: Any) -> None:
    manifest = cluster(store).manifest()
    by_map = {line["map"]: line for line in lines(tmp_path, "snapshots")}
    assert by_map.keys() == manifest.snapshots.keys() == {"orders", "other"}
    for name, snapshot in manifest.snapshots.items():
        line = by_map[name]
        assert line["generation"] == snapshot.generation and line["live"] == snapshot.live
        assert dict(line["marks"]) == {
            each: str(mark.position) for each, mark in snapshot.marks.items()
        }
        assert line["files"] == len(snapshot.files) and line["dropped"] is None


def test_former_snapshots_have_their_reader(tmp_path: Path, store: Any) -> None:
    log = cluster(store, FakeClock())
    keep_history(log, 3600)
    append(node(store, "n3"), put("new", 1, (1, 1, 3, 1)))
    rewrite(log, LocalEngine(SMALL), skew_ms_max=2**60)
    readers = [line["kept_for"] for line in lines(tmp_path, "snapshots", map="orders")]
    assert readers == ["history", None]


def test_nodes_have_their_state_and_readers(tmp_path: Path, store: Any) -> None:
    log = cluster(store)
    place = log.ends()["n2"]
    Reader(log.context, log.folder, "lake").begin({"n2": place})
    first, second = lines(tmp_path, "nodes")
    (view,) = take_inventory(Context(store))
    assert (first["node"], first["state"], first["archives"]) == ("n1", "open or crashed", 4)
    assert (second["node"], second["state"], second["segments"]) == ("n2", "closed", 1)
    assert dict(second["readers"]) == {"lake": str(place)} and "lake" in dict(first["readers"])
    assert first["segment_bytes"] == view.all_nodes[0].wal_bytes
    assert first["directory"] == view.manifest.nodes["n1"] and first["sign"] is None
    (only,) = lines(tmp_path, "nodes", node="n2")
    assert only == second


def test_readers_have_what_they_have_not_read(tmp_path: Path, store: Any) -> None:
    """Of each node. A published table reads no log."""
    log = cluster(store)
    ends = log.ends()
    lake = Reader(log.context, log.folder, "lake")
    lake.begin({"n2": ends["n2"]})
    table = Reader(log.context, log.folder, "delta orders")
    snapshot = log.manifest().snapshots["orders"]
    base = Base({}, {}, {"orders": snapshot}, {}, ("orders",), {})
    table.keep(lambda bases: (base,), 0, files_only=True)
    (view,) = take_inventory(Context(store))
    first, second = lines(tmp_path, "readers")
    archived = sum(archive.bytes for archive in view.nodes["n1"].manifest.archives)
    assert (first["reader"], first["kind"], first["node"]) == ("lake", "stream", "n1")
    assert (first["position"], first["end_position"]) == (str(START), str(ends["n1"]))
    assert archived < first["unread_bytes"] < archived + 4_000, "no space that was not written"
    assert first["updated_ms"] == log.clock.now_ms()
    assert (second["node"], second["position"]) == ("n2", str(ends["n2"]))
    assert second["unread_bytes"] < 100, "its last frame"
    lake.begin({"n2": ends["n2"]})
    lake.advance(ends)
    assert [line["unread_bytes"] < 100 for line in lines(tmp_path, "readers")] == [True] * 2
    (only,) = lines(tmp_path, "readers", node="n2")
    assert only["node"] == "n2"


def test_a_node_whose_folder_is_gone_is_missing(tmp_path: Path, store: Any) -> None:
    (folder,) = (tmp_path / "log").glob("*/*/nodes/n2")
    folder.rename(tmp_path / "away")
    options = Options.parse({"path": str(tmp_path / "log"), "table": "nodes"})
    reader = MetadataReader(options, options.kinds())
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert [(line["node"], line["state"]) for line in batch.to_pylist()] == [
        ("n1", "open or crashed"),
        ("n2", "MISSING"),
    ]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"table": "file"}, "'file'"), ({"table": "nodes", "mode": "latest"}, "mode")],
)
def test_a_wrong_table_is_named(options: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidSetting, match=word):
        Options.parse({"path": "x", **options})
