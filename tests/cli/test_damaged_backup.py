"""`imap-wal backup` of a damaged log, and of several logs into one place."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from imap_wal.backup import catalogue
from imap_wal.manifest import list_files
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.cli.conftest import Run
from tests.kit.effort import every

EIGHT = b"\x55\xaa" * 4


def make(root: Path, *, sealed: int = 3, cluster: str = "eu", archived: bool = False) -> Path:
    """A log with some sealed segments. `archived`: also with archives and a snapshot."""
    for number in range(sealed + 1):
        with imap_wal.open(root, cluster=cluster, node="n1", segment_bytes=4096) as store:
            store.map("m").update({f"k{number}-{each}": "x" * 100 for each in range(40)})
            if archived:
                store.archive()
    return root


def harm(file: Path, place: float = 0.5) -> None:
    """Change 8 bytes within a file."""
    with file.open("r+b") as opened:
        opened.seek(int(file.stat().st_size * place))
        opened.write(EIGHT)


def segments(root: Path) -> list[Path]:
    return sorted(root.rglob("*.wal"))


def test_a_damaged_segment_marks_the_backup(run: Run, tmp_path: Path) -> None:
    """The only whole backup stays, however often the damaged log is copied."""
    root, target = make(tmp_path / "log"), tmp_path / "b"
    assert run("backup", root, target, "--keep", 1).code == 0
    sealed = segments(root)[1]
    harm(sealed)
    for number in (2, 3):
        made = run("backup", root, target, "--keep", 1, "--verify", "-o", "json")
        assert (made.code, made.json["backup"], made.json["removed"]) == (3, number, [])
        assert [each["file"] for each in made.json["damaged"]] == [str(sealed.relative_to(root))]
    said = run("verify", root, "-o", "json").json
    found = next(each for each in said["files"] if each["status"] == "corrupt")
    assert made.json["damaged"][0]["offset"] == found["offset"]
    text = run("backup", root, target)
    assert "every change" not in text.out
    assert f"{found['file']} at byte {found['offset']:,}: a damaged frame" in text.err
    assert "earlier backup" in text.err
    listed = run("backup-restore", target, "-o", "json").json["backups"]
    assert [(each["backup"], each["damaged"]) for each in listed] == [
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 1),
    ]


def test_a_damaged_backup_is_restored_only_by_number(run: Run, tmp_path: Path) -> None:
    root, target = make(tmp_path / "log"), tmp_path / "b"
    assert run("backup", root, target).code == 0
    harm(segments(root)[1])
    assert run("backup", root, target).code == 3
    refused = run("backup-restore", target, tmp_path / "new")
    assert refused.code == 1
    assert "the newest whole one is 1" in refused.err
    found = run("backup-restore", target, "--verify", "-o", "json")
    assert (found.code, len(found.json["damaged"])) == (3, 1)
    assert "when it was copied" in found.json["damaged"][0]["what"]
    named = ("--backup", 2)
    assert run("backup-restore", target, tmp_path / "new", *named, "--verify").code == 3
    assert not (tmp_path / "new").exists()
    put = run("backup-restore", target, tmp_path / "new", *named)
    assert put.code == 3
    assert "imap-wal repair" in put.err
    assert run("verify", tmp_path / "new").code == 3
    assert run("backup-restore", target, tmp_path / "old", "--backup", 1).code == 0
    assert run("verify", tmp_path / "old").code == 0


def test_retention_counts_only_whole_backups(run: Run, tmp_path: Path) -> None:
    root, target = make(tmp_path / "log"), tmp_path / "b"
    sealed = segments(root)[1]
    whole = sealed.read_bytes()
    assert run("backup", root, target).code == 0
    harm(sealed)
    assert run("backup", root, target).code == 3
    sealed.write_bytes(whole)
    assert run("backup", root, target, "--keep", 2, "-o", "json").json["removed"] == []
    made = run("backup", root, target, "--keep", 2, "-o", "json")
    assert (made.code, made.json["removed"]) == (0, [1, 2])


def test_a_run_that_finds_damage_removes_nothing(run: Run, tmp_path: Path) -> None:
    """Not even what the earlier, whole backups would allow to remove."""
    root, target = make(tmp_path / "log"), tmp_path / "b"
    for _ in range(3):
        assert run("backup", root, target).code == 0
    harm(segments(root)[1])
    made = run("backup", root, target, "--keep", 1, "-o", "json")
    assert (made.code, made.json["removed"]) == (3, [])


@every(2)
@pytest.mark.parametrize("kind", ["archive", "snapshot"])
def test_a_damaged_parquet_file_is_found(run: Run, tmp_path: Path, kind: str) -> None:
    root, target = make(tmp_path / "log", archived=True), tmp_path / "b"
    if kind == "snapshot":
        assert run("rewrite", root).code == 0
    assert run("backup", root, target, "--keep", 1).code == 0
    file = next(each for each in root.rglob("*.parquet") if kind in each.parts)
    harm(file)
    made = run("backup", root, target, "--keep", 1, "-o", "json")
    assert (made.code, made.json["removed"]) == (3, [])
    assert made.json["damaged"] == [
        {
            "file": str(file.relative_to(root)),
            "offset": 0,
            "what": "the file does not match the checksum in the manifest",
        }
    ]


@every(2)
@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_list_is_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The archives that it names are copied all the same."""
    monkeypatch.setattr(list_files, "LIST_MIN", 2)
    monkeypatch.setattr(list_files, "NEWEST_MAX", 2)
    root, target = make(tmp_path / "log", sealed=6, archived=True), tmp_path / "b"
    assert run("backup", root, target, "--keep", 1).code == 0
    file = next(root.rglob("nodes/*/lists/*"))
    if lost:
        file.unlink()
    else:
        harm(file)
    made = run("backup", root, target, "--keep", 1, "-o", "json")
    assert (made.code, made.json["removed"]) == (3, [])
    assert [each["file"] for each in made.json["damaged"]] == [str(file.relative_to(root))]
    assert run("backup-restore", target, tmp_path / "new", "--backup", 2).code == 3
    named = {file.name for file in root.rglob("*.parquet")}
    assert named == {each.name for each in (tmp_path / "new").rglob("*.parquet")}


@pytest.mark.parametrize("place", [0.0, 0.1, 0.99])
def test_a_damaged_newest_segment_is_copied_whole(run: Run, tmp_path: Path, place: float) -> None:
    root, target = make(tmp_path / "log", sealed=1), tmp_path / "b"
    newest = segments(root)[-1]
    with imap_wal.open(root, cluster="eu", node="n1", segment_bytes=1 << 20) as store:
        for number in range(100):
            store.map("m")[f"more{number}"] = "y" * 100
        newest = segments(root)[-1]
    harm(newest, place)
    made = run("backup", root, target, "-o", "json")
    assert (made.code, [each["file"] for each in made.json["damaged"]]) == (
        3,
        [str(newest.relative_to(root))],
    )
    assert run("backup-restore", target, tmp_path / "new", "--backup", 1).code == 3
    assert (tmp_path / "new" / newest.relative_to(root)).read_bytes() == newest.read_bytes()


def test_the_last_commit_on_an_object_store_is_copied_whole(run: Run, tmp_path: Path) -> None:
    """Its damage looks like an incomplete commit, but the manifest names its frame."""
    root, url = tmp_path / "log", f"objects+file://{tmp_path}/log"
    with imap_wal.open(url, node="n1") as store:
        for number in range(3):
            store.map("m")[number] = "x" * 500
    newest = segments(root)[-1]
    harm(newest)
    made = run("backup", url, tmp_path / "b", "-o", "json")
    name = str(newest.relative_to(root))
    assert (made.code, [each["file"] for each in made.json["damaged"]]) == (3, [name])
    assert run("backup-restore", tmp_path / "b", tmp_path / "new", "--backup", 1).code == 3
    assert (tmp_path / "new" / name).read_bytes() == newest.read_bytes()


def test_a_segment_without_its_end_is_found(run: Run, tmp_path: Path) -> None:
    """It ends between two frames, so all its checksums are right."""
    root, target = make(tmp_path / "log", sealed=1), tmp_path / "b"
    sealed = segments(root)[0]
    store = open_store(f"file://{root}")
    last = list(SegmentReader(store, str(sealed.relative_to(root))).whole_frames())[-1]
    with sealed.open("r+b") as file:
        file.truncate(last.offset)
    made = run("backup", root, target, "-o", "json")
    assert made.code == 3
    assert made.json["damaged"][0]["offset"] == last.offset
    assert "the end of this one is missing" in made.json["damaged"][0]["what"]


def test_each_log_has_its_own_retention(run: Run, tmp_path: Path) -> None:
    big, small, target = make(tmp_path / "big"), make(tmp_path / "small"), tmp_path / "b"
    for _ in range(2):
        assert run("backup", big, target, "--keep", 1).code == 0
        assert run("backup", small, target, "--keep", 1).code == 0
    listed = run("backup-restore", target, "-o", "json").json["backups"]
    assert [(each["backup"], Path(each["source"]).name) for each in listed] == [
        (3, "big"),
        (4, "small"),
    ]
    for number in (3, 4):
        assert run("backup-restore", target, "--verify", "--backup", number).code == 0
    refused = run("backup-restore", target, tmp_path / "new")
    assert refused.code == 1
    assert "backups of several logs" in refused.err
    assert run("backup-restore", target, tmp_path / "new", "--backup", 3).code == 0


def test_each_selection_has_its_own_retention(run: Run, tmp_path: Path) -> None:
    root, target = make(tmp_path / "log"), tmp_path / "b"
    make(root, cluster="us")
    assert run("backup", root, target, "--keep", 1).code == 0
    assert run("backup", root, target, "--keep", 1, "--cluster", "eu").code == 0
    assert run("backup", root, target, "--keep", 1, "--cluster", "eu").code == 0
    listed = run("backup-restore", target, "-o", "json").json["backups"]
    assert [each["backup"] for each in listed] == [1, 3]
    assert listed[1]["source"].endswith("log --cluster eu")


def test_a_log_that_was_begun_again_is_another_one(run: Run, tmp_path: Path) -> None:
    """As are logs of two machines with the same URL."""
    root, target = make(tmp_path / "log"), tmp_path / "b"
    assert run("backup", root, target, "--keep", 1).code == 0
    root.rename(tmp_path / "former")
    make(root)
    assert run("backup", root, target, "--keep", 1, "-o", "json").json["removed"] == []


def test_nothing_is_removed_while_a_backup_is_unreadable(run: Run, tmp_path: Path) -> None:
    root, target = make(tmp_path / "log"), tmp_path / "b"
    assert run("backup", root, target).code == 0
    harm(target / "backups/00000001.json")
    ended = run("backup", root, target, "--keep", 1)
    assert ended.code == 1
    assert "delete it" in ended.err
    assert catalogue.numbers(open_store(f"file://{target}")) == [1, 2]


@every(3)
@pytest.mark.parametrize("inside", ["", "backups", "default/eu/nodes/n1/wal/b", "a/b/c"])
def test_a_place_in_another_log_is_refused(run: Run, tmp_path: Path, inside: str) -> None:
    root, other = make(tmp_path / "log"), make(tmp_path / "other")
    before = {*other.rglob("*")}
    ended = run("backup", root, other / inside)
    assert ended.code == 1
    assert "the root of log default/eu" in ended.err
    assert {*other.rglob("*")} == before
