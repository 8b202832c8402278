"""repair of damaged archives, snapshots and manifests: all readable entries are kept."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import imap_wal
from imap_wal.context import open_context
from imap_wal.format import Position
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import ClusterLog
from tests.cli.conftest import Run
from tests.kit.effort import every
from tests.kit.repairs import damaged_file, flip, frames, repair, values


def test_readable_rows_of_a_damaged_archive_are_copied(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for start in range(0, 6000, 100):
            store.map("m").update(
                {
                    f"k{number}": [number, random.Random(number).randbytes(40).hex()]
                    for number in range(start, start + 100)
                }
            )
        store.archive()
        store.map("m")["last"] = 1
    (archive,) = (tmp_path / "log").rglob("*.parquet")
    flip(archive, archive.stat().st_size // 2)
    assert run("verify", tmp_path / "log").code == 3
    found = damaged_file(repair(run, tmp_path))
    assert found["kind"] == "archive"
    assert found["kept"]["records"] + found["given_up"]["records"] == 6000
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert len(lines) == found["kept"]["records"] + 1
    archive.write_bytes(archive.read_bytes()[:-9])
    ended = run("repair", tmp_path / "log", "--dry-run", "-o", "json")
    assert damaged_file(ended.json)["action"] == "given-up"
    archive.unlink()
    assert (
        "1 file lost something: 6,000 records; 1 record kept"
        in run("repair", tmp_path / "log", "--dry-run").out
    )
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/without", "-o", "json")
    assert ended.json["summary"]["unknown_bytes"] == 1
    assert (ended.code, damaged_file(ended.json)["given_up"]["records"]) == (3, 6000)
    assert [line["key"] for line in run("dump", f"{tmp_path}/without", "-o", "json").lines] == [
        "last"
    ]


def test_point_in_time_ends_at_a_damaged_archive(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for round_ in range(3):
            for number in range(5):
                store.map("a")[f"{round_}-{number}"] = "x" * 100
                store.map("b")[f"{round_}-{number}"] = "y" * 100
            store.archive()
        store.map("a")["last"] = 1
    second = sorted((tmp_path / "log").rglob("archive/a/*.parquet"))[1]
    flip(second, second.stat().st_size - 100)
    second.write_bytes(second.read_bytes()[:-30])
    found = repair(run, tmp_path, "--mode", "point-in-time")
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert sorted((line["map"], line["key"]) for line in lines) == [
        (name, f"0-{number}") for name in "ab" for number in range(5)
    ]
    assert found["summary"]["given_up_records"] == 21
    with imap_wal.open(f"file://{tmp_path}/copy", node="n1") as store:
        assert len(store.map("a")) == len(store.map("b")) == 5


def test_point_in_time_ends_where_lost_rows_begin(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of an archive are in the order of keys, so lost ones may be anywhere in the log."""
    monkeypatch.setattr("imap_wal.parquet.archive_rows.GROUP_ROWS", 10)
    keys = [f"k{(number * 3 + 20) % 40:02d}" for number in range(40)]
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for number, key in enumerate(keys):
            store.map("m")[key] = random.Random(number).randbytes(400)
        store.archive()
    (archive,) = (tmp_path / "log").rglob("*.parquet")
    footer = pq.ParquetFile(archive).metadata
    column = footer.schema.names.index("value")
    flip(archive, footer.row_group(1).column(column).data_page_offset + 200)
    lost = {f"k{number}" for number in range(10, 20)}  # the second row group
    first = next(number for number, key in enumerate(keys) if key in lost)
    found = repair(run, tmp_path, "--mode", "point-in-time")
    kept = [line["key"] for line in run("dump", f"{tmp_path}/copy", "-o", "json").lines]
    assert kept == keys[:first] and first == 10
    assert found["summary"]["given_up_records"] == 30
    assert sorted(values(f"{tmp_path}/copy")) == sorted(kept)
    salvaged = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/more", "-o", "json")
    assert damaged_file(salvaged.json)["kept"]["records"] == 30
    kept = [line["key"] for line in run("dump", f"{tmp_path}/more", "-o", "json").lines]
    assert kept == [key for key in keys if key not in lost]


def test_a_log_with_a_damaged_snapshot_is_repaired(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    snapshot = next((root / "prod/eu/snapshot").rglob("*.parquet"))
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[: len(data) // 2])
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 3
    assert damaged_file(ended.json)["kind"] == "snapshot"
    assert run("restore", f"{tmp_path}/copy").code == 0
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        store.map("orders")["new"] = 1
    assert "new" in {line["key"] for line in run("export", f"{tmp_path}/copy").lines}


def test_a_damaged_manifest_is_replaced_by_the_one_before(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    state = run("export", url).out
    manifest = max((root / "prod/eu/nodes/n1/manifest").glob("*.json"))
    manifest.write_bytes(b"\0" * 100)
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 3
    assert damaged_file(ended.json)["kind"] == "manifest"
    assert run("export", f"{tmp_path}/copy").out == state
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        store.map("orders")["o1"] = "newest"
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        assert store.map("orders")["o1"] == "newest"


def test_archives_of_a_lost_manifest_are_adopted(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        store.map("m").update({f"k{key}": key for key in range(10)})
        store.archive()
        manifest = max((tmp_path / "log").rglob("nodes/n1/manifest/*.json"))
        store.map("m")["k1"] = "after"
    for lost in manifest.parent.glob("*.json"):
        if lost >= manifest:
            flip(lost, 30)
    repair(run, tmp_path)
    assert values(f"{tmp_path}/copy") == {**{f"k{key}": key for key in range(10)}, "k1": "after"}


@pytest.mark.parametrize("mode", ["salvage", "point-in-time"])
def test_a_node_of_an_older_backup_is_repaired(run: Run, tmp_path: Path, mode: str) -> None:
    """The snapshot is of later segments, so their epochs are guessed. The repaired copy did not
    open: its manifest had another id for the epoch of the segments that were there."""
    log = tmp_path / "log"
    with imap_wal.open(log, node="n1", auto_rewrite_percentage=0) as store:
        store.map("m")["before"] = 1
    folder = log / "default/embedded/nodes/n1"
    shutil.copytree(folder, tmp_path / "backup")
    with imap_wal.open(log, node="n1", auto_rewrite_percentage=0, segment_bytes=4096) as store:
        later = {number: random.Random(number).randbytes(1000) for number in range(16)}
        for number, value in later.items():
            store.map("m")[number] = value
    assert len(list(folder.glob("wal/*.wal"))) > 3
    assert run("rewrite", log).code == 0
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    repair(run, tmp_path, "--mode", mode)
    assert values(f"{tmp_path}/copy") == {"before": 1, **later}


def test_a_segment_of_another_copy_is_not_void(run: Run, tmp_path: Path) -> None:
    """Its name says that a later writer had replaced its writer; the id of its epoch does not."""
    log, other = tmp_path / "log", tmp_path / "other"

    def write(root: Path, **values: int) -> None:
        with imap_wal.open(root, node="n1", auto_rewrite_percentage=0) as store:
            store.map("m").update(values)

    write(log, first=1)
    shutil.copytree(log, other)
    write(other, theirs=2)
    with imap_wal.open(log, node="n1", auto_rewrite_percentage=0):
        pass
    write(log, ours=3)
    folder = "default/embedded/nodes/n1"
    theirs = f"{folder}/wal/00000002-00000002.wal"
    assert (log / f"{folder}/wal/00000003-00000002.wal").exists()
    shutil.copy(other / theirs, log / theirs)
    assert values(f"{log}") == {"first": 1, "ours": 3}
    file = damaged_file(repair(run, tmp_path))
    assert (file["file"], file["action"]) == (theirs, "given-up")
    assert "another copy of this log" in file["what"]
    aside = tmp_path / f"copy/{folder}/lost/00000002-00000002.wal.foreign"
    assert aside.read_bytes() == (other / theirs).read_bytes()
    assert values(f"{tmp_path}/copy") == {"first": 1, "ours": 3}


def test_a_checkpoint_of_another_copy_names_no_frame(run: Run, tmp_path: Path) -> None:
    """The repaired copy kept it, and did not open: bytes there were no frame."""
    log, other = tmp_path / "log", tmp_path / "other"

    def write(root: Path, *values: str) -> None:
        with imap_wal.open(root, node="n1", auto_rewrite_percentage=0) as store:
            for number, value in enumerate(values):
                store.map("m")[number] = value

    write(log, "first")
    shutil.copytree(log, other)
    write(other, "a", "b")
    longer = ["x" * 333, "y" * 444, "z" * 555]
    write(log, *longer)
    write(log, "last")
    folder = "default/embedded/nodes/n1/manifest"
    shutil.rmtree(log / folder)
    shutil.copytree(other / folder, log / folder)
    repair(run, tmp_path)
    assert values(f"{tmp_path}/copy") == {0: "last", 1: longer[1], 2: longer[2]}


def test_void_entries_of_a_former_lifetime_stay_void(run: Run, log: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    _, middle, _ = sorted(log.glob("*.wal"))
    all_frames = frames(middle)
    cut = Position(2, 2, all_frames[6].offset, 0)
    whole = ClusterLog(open_context(f"{tmp_path}/log"), "default", "embedded")
    lifetime = IncarnationRecord(
        "c", 3, {"n1": cut}
    )  # the third open's entries count, the second's only up to the cut
    whole.manifests.update(lambda manifest: replace(manifest, lifetimes=(lifetime,)))
    lines = run("dump", f"{tmp_path}/log", "-o", "json").lines
    assert [line["value"] for line in lines] == [[0, key] for key in range(10)] + [
        [1, key] for key in range(7)
    ] + [[2, key] for key in range(10)]
    flip(middle, all_frames[2].offset + 30)
    repair(run, tmp_path)
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    kept = [[1, key] for key in range(7) if key != 2]
    assert [line["value"] for line in lines] == [[0, key] for key in range(10)] + kept + [
        [2, key] for key in range(10)
    ]


@every(2)
@pytest.mark.parametrize("remains", [True, False])
def test_what_only_a_lost_snapshot_had_is_reported(run: Run, tmp_path: Path, remains: bool) -> None:
    """The cluster's manifest of an earlier day is put back; the log below the snapshot is gone."""
    log = tmp_path / "log"
    former = log / "default/embedded/manifest"
    for number in range(3):
        with imap_wal.open(f"file://{log}", node="n1") as store:
            store.map("m")[f"k{number}"] = number
            store.archive()
        if not number:
            shutil.copytree(former, tmp_path / "earlier")
        else:
            assert run("rewrite", log).code == 0
            assert run("prune", log, "--yes").code == 0
    shutil.rmtree(former)
    shutil.copytree(tmp_path / "earlier", former)
    if not remains:
        shutil.rmtree(log / "default/embedded/snapshot")
    (item,) = [item for item in repair(run, tmp_path)["files"] if item["action"] == "rewritten"]
    assert "is older than the files beside it" in item["what"]
    assert ("those that only a later snapshot had are lost" in item["what"]) is not remains
    assert len(values(f"file://{tmp_path}/copy")) == (3 if remains else 0)
